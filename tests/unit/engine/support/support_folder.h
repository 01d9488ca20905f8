/* support_folder.h: folders of model files for tests, below /tmp, and safetensors files byte by
 * byte. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct error;

struct test_folder {
    char path[64];
};

void folder_create(struct test_folder *folder);
/* Removes the folder with everything in it, links included. */
void folder_remove(struct test_folder *folder);
/* Path of a name in the folder; valid until the next four calls. */
const char *folder_at(const struct test_folder *folder, const char *name);
/* Creates or replaces a file; "a/b/c" makes the folders a and a/b. */
void folder_write(const struct test_folder *folder, const char *name, const void *bytes,
                  size_t n_bytes);
void folder_write_text(const struct test_folder *folder, const char *name, const char *text);

/* Writes a safetensors file: the length of the header, the header, and n_data bytes that count up
 * from 0. */
void folder_write_safetensors(const struct test_folder *folder, const char *name,
                              const char *header, size_t n_data);

/* config.json of a small model, and one model.safetensors with the tensors a F32 [2, 4], b F16
 * [3, 2] and c BF16 [5], in 32 + 12 + 10 bytes. */
extern const char folder_config[], folder_header[];
enum { FOLDER_DATA_BYTES = 54 };
void folder_write_model(const struct test_folder *folder);

/* --- copies of the golden folders below tests/golden/tiny --- */

/* Bytes of a file; the caller frees them. A NUL byte follows. */
char *folder_read_golden(const char *golden, const char *name, size_t *out_n_bytes);
/* Copies a file. Each `old` in it becomes `now`; "" changes nothing. Fails the test if the file has
 * no `old`. */
void folder_copy_golden(const struct test_folder *to, const char *golden, const char *name,
                        const char *old, const char *now);
