/* The text of an echoing worker, shared with the programs that check the text. */
#include "tests/support/load/echo_serve.h"

uint32_t echo_token(const uint32_t *prompt, size_t n_prompt, uint32_t choice, uint32_t index)
{
    return prompt[((size_t)index + choice) % n_prompt];
}

/* Three letters of 26³ and a space. */
void echo_text(uint32_t id, uint32_t index, char out_text[ECHO_TEXT_BYTES])
{
    uint32_t mixed = (id * 2654435761u) ^ (index * 2246822519u);
    mixed ^= mixed >> 15;
    for (int i = 0; i < ECHO_TEXT_BYTES - 1; i++) {
        out_text[i] = (char)('a' + mixed % 26);
        mixed /= 26;
    }
    out_text[ECHO_TEXT_BYTES - 1] = ' ';
}
