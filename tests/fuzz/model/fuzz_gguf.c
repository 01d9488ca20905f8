/* Fuzzes the GGUF reader with random bytes as a model file. A file opens, or is refused with
 * MODEL_FILE_INVALID (or UNIMPLEMENTED). An open file can be walked, read and used to tokenize. */
#include "engine/text/tokenizer.h"
#include "tests/fuzz/model/fuzz_checkpoint.h"

static void tokenize(const struct checkpoint *ckpt)
{
    static const char text[] = "Hello, world! 123 <|end|>\n  \xC3\xA9";
    struct tokenizer *tok = NULL;
    struct error err = {0};
    struct token_list list = {0};
    int rc = tokenizer_open(ckpt, &tok, &err);
    if (rc == 0)
        fuzz_require(tokenizer_encode(tok, text, sizeof(text) - 1, TOKENIZER_PARSE_SPECIAL, &list,
                                      NULL, &err) == 0,
                     "encode", &err);
    else
        fuzz_require(rc == STATUS_UNIMPLEMENTED || err.reason == REASON_MODEL_FILE_INVALID,
                     "tokenizer", &err);
    token_list_fini(&list);
    tokenizer_close(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int fd = -1;
    char path[64];
    struct checkpoint *ckpt = NULL;
    struct error err = {0};
    if (fd < 0)
        fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, n_bytes, 0) != (ssize_t)n_bytes)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = checkpoint_open(path, &ckpt, &err);
    if (rc == 0) {
        fuzz_walk(ckpt);
        tokenize(ckpt);
    } else {
        fuzz_require(rc == STATUS_UNIMPLEMENTED ||
                         (rc == STATUS_INVALID_ARGUMENT && err.reason == REASON_MODEL_FILE_INVALID),
                     "open", &err);
        /* The message about a file of another kind names the kind and no offset. */
        bool is_gguf = n_bytes >= 4 && memcmp(data, "GGUF", 4) == 0;
        fuzz_require(!is_gguf || strstr(err.message, ": offset ") != NULL, "no offset", &err);
    }
    checkpoint_close(ckpt);
    return 0;
}
