/* Runs a fuzz target over the empty input, as libFuzzer does first, and over the files of folders:
 * `replay_X FOLDER...`. The program makes no input of its own. A sanitizer's report or an abort of
 * the target ends the program. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* The input is a block of exactly its size: the address sanitizer sees a read past the end. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        if (file)
            fclose(file);
        return -1;
    }
    size_t n_bytes = (size_t)st.st_size;
    uint8_t *data = malloc(n_bytes ? n_bytes : 1);
    int rc = data && fread(data, 1, n_bytes, file) == n_bytes ? 0 : -1;
    fclose(file);
    if (rc == 0)
        LLVMFuzzerTestOneInput(data, n_bytes);
    else
        fprintf(stderr, "%s: cannot be read\n", path);
    free(data);
    return rc;
}

/* The number of files that ran, or -1. */
static int replay_folder(const char *folder)
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, alphasort), n_run = 0;
    if (n < 0) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        return -1;
    }
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && n_run >= 0) {
            fprintf(stderr, "%s\n", path); /* the last line names the input of a crash */
            n_run = replay_file(path) == 0 ? n_run + 1 : -1;
        }
        free(entries[i]);
    }
    free(entries);
    return n_run;
}

int main(int argc, char **argv)
{
    int n_run = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        int n = replay_folder(argv[i]);
        if (n < 0)
            return 1;
        n_run += n;
    }
    printf("%d inputs\n", n_run);
    return n_run > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
