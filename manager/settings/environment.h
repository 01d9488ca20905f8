/* environment.h: the environment that workers get from the manager's. Pure, except for the
 * working directory; any thread. */
#pragma once

/* Copies PATH, HOME, LANG and the variables with certain prefixes (SLUICE_, CUDA_,
 * LD_LIBRARY_PATH, sanitizer options). Workers run in another folder, so relative paths in
 * SLUICE_CUDA_MODULE and SLUICE_CUDA_LIBRARY_PATH become absolute below `folder`, the manager's
 * own. NULL or empty: unknown, the paths stay relative. The result is owned (one block: free());
 * NULL where memory is exhausted. */
char **environment_create(char *const *environ_of_parent, const char *folder);
