/* checkpoint_files.h: the files of an open checkpoint, and the files beside the weights that other
 * readers parse: tokenizer and chat template. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct error;
struct source;

enum { CHECKPOINT_MAX_FILES = 2048, CHECKPOINT_MAX_END_IDS = 32 };

/* All files, in the order of the digest. Names are relative to the model's folder. */
uint32_t checkpoint_n_files(const struct checkpoint *ckpt);
const char *checkpoint_file_name(const struct checkpoint *ckpt, uint32_t file);
/* Borrowed until close. */
struct source *checkpoint_file_source(const struct checkpoint *ckpt, uint32_t file);

/* Sidecars of a Hugging Face folder are the files that the readers of tokenizers and templates
 * parse. These are tokenizer.json, tokenizer_config.json, added_tokens.json,
 * special_tokens_map.json, tokenizer.model, tekken.json, tiktoken.model, vocab.json, merges.txt,
 * chat_template.jinja and chat_template.json. Named templates are
 * additional_chat_templates/NAME.jinja. A GGUF file has no sidecars. The digest covers their
 * bytes. */

/* Index of a file by its name; UINT32_MAX if the model has no such sidecar. */
uint32_t checkpoint_find_sidecar(const struct checkpoint *ckpt, const char *name);
/* Number i of the sidecars, in the order of the digest; UINT32_MAX after the last. */
uint32_t checkpoint_sidecar_at(const struct checkpoint *ckpt, uint32_t i);
/* Reads the whole sidecar. *out_bytes is owned (free()), and a NUL follows its n bytes. NOT_FOUND:
 * the model has no such sidecar. FAILED_PRECONDITION (reason MODEL_FILE_CHANGED): the file changed
 * since the checkpoint was opened. The file's size has a limit, checked when it was opened. */
int checkpoint_read_sidecar(const struct checkpoint *ckpt, const char *name, char **out_bytes,
                            size_t *out_n_bytes, struct error *err);
/* Fills *err for invalid content of a sidecar at byte `offset`: INVALID_ARGUMENT, reason
 * MODEL_FILE_INVALID, "<file>: offset N: <text>; <remedy>". UINT64_MAX: no offset in the text. */
int checkpoint_bad_sidecar(const struct checkpoint *ckpt, const char *name, uint64_t offset,
                           struct error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The ids that end a generation, as eos_token_id of config.json and generation_config.json list
 * them together. Returns their number, at most CHECKPOINT_MAX_END_IDS. 0 for a GGUF file, where the
 * keys of the tokenizer say so. */
uint32_t checkpoint_end_ids(const struct checkpoint *ckpt, const uint32_t **out_ids);
