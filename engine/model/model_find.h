/* model_find.h: finds the architecture of a file, and the source that describes the file: its
 * format and dialect. Internal to engine/model. */
#pragma once

struct arch;
struct arch_source;
struct checkpoint;
struct error;

enum { MODEL_PREFIX_BYTES = 97 }; /* a name of an architecture, a dot and the end */

/* Takes the first of the format's names that is known. *arch not NULL: takes this architecture in
 * place of the file's. `out_prefix` gets the beginning of the architecture's keys, such as
 * "llama.". UNIMPLEMENTED names an unknown architecture. */
int model_find_arch(const struct checkpoint *ckpt, const struct arch **arch,
                    const struct arch_source **out_source, char out_prefix[MODEL_PREFIX_BYTES],
                    struct error *err);
