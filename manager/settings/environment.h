/* environment.h: what of the manager's environment its workers get. Pure but for the working
 * directory; any thread. */
#pragma once

/* PATH, HOME, LANG and what starts with one of the prefixes that matter to them (SLUICE_, CUDA_,
 * LD_LIBRARY_PATH, sanitizer options). Workers run in another folder: relative paths of
 * SLUICE_CUDA_MODULE and SLUICE_CUDA_LIBRARY_PATH are made absolute by `folder`, the manager's own
 * (NULL or empty: not known, they stay as they are). Owned (one block: free()); NULL where memory
 * is exhausted. */
char **environment_create(char *const *environ_of_parent, const char *folder);
