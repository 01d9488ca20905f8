/* tokenizer_ids: encodes strings with a model's tokenizer, for comparison with other tokenizers.
 *
 *   tokenizer_ids [-s] [-b] [-k KIND] FILE [KEY=FILE...]
 *
 * FILE is a GGUF file, or with -k a file of a Hugging Face folder: json, spm, tekken, tiktoken,
 * vocab. KEY=FILE gives further files of the folder: config, added, special, merges.
 * Standard input has the strings, each as its length (u32) and its bytes. Standard output has per
 * string: the number of ids, the ids, the length of the decoded text, the text (u32 each). -s:
 * literals of control tokens are parsed. -b: prompts begin as the model expects. -t N: encodes N
 * times and prints the time of the fastest instead. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"

static void fail(const struct error *err)
{
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static char *read_all(FILE *file, size_t *out_n)
{
    struct strbuf buf = {0};
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&buf, part, n);
    *out_n = buf.n_bytes;
    strbuf_add_char(&buf, '\0');
    return strbuf_take(&buf);
}

static struct tokenizer_file read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    struct tokenizer_file f = {0};
    f.bytes = read_all(file, &f.n_bytes);
    fclose(file);
    return f;
}

static struct tokenizer *open_one(const char *kind, const char *path, char **more, int n_more)
{
    struct tokenizer *tok = NULL;
    struct error err = {0};
    int rc;
    if (!kind) {
        struct checkpoint *ckpt;
        rc = checkpoint_open(path, &ckpt, &err);
        if (rc)
            fail(&err);
        rc = tokenizer_open(ckpt, &tok, &err);
        checkpoint_close(ckpt);
    } else {
        static const char *const names[] = {"json",  "spm",     "tekken", "tiktoken", "config",
                                            "added", "special", "vocab",  "merges"};
        struct tokenizer_folder folder = {.name = "folder"};
        struct tokenizer_file *files[] = {
            &folder.tokenizer_json,     &folder.tokenizer_model,  &folder.tekken,
            &folder.tiktoken,           &folder.tokenizer_config, &folder.added_tokens,
            &folder.special_tokens_map, &folder.vocab_json,       &folder.merges};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            if (strcmp(kind, names[i]) == 0)
                *files[i] = read_file(path);
            size_t n = strlen(names[i]);
            for (int k = 0; k < n_more; k++)
                if (strncmp(more[k], names[i], n) == 0 && more[k][n] == '=')
                    *files[i] = read_file(more[k] + n + 1);
        }
        rc = tokenizer_open_folder(&folder, &tok, &err);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            free((void *)(uintptr_t)files[i]->bytes);
    }
    if (rc)
        fail(&err);
    return tok;
}

static void write_u32(uint32_t value)
{
    fwrite(&value, sizeof(value), 1, stdout);
}

static void decode(const struct tokenizer *tok, const struct token_list *list, struct strbuf *out)
{
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct error err = {0};
    if (detokenizer_create(tok, false, &d, &err))
        fail(&err);
    detokenizer_begin_text(d);
    for (size_t i = 0; i < list->n_ids; i++) {
        if (detokenizer_push(d, list->ids[i], &delta, &err))
            fail(&err);
        strbuf_add(out, delta.text, delta.n_bytes);
    }
    if (detokenizer_flush(d, &delta, &err))
        fail(&err);
    strbuf_add(out, delta.text, delta.n_bytes);
    detokenizer_destroy(d);
}

static void time_it(const struct tokenizer *tok, const char *text, size_t n_bytes, unsigned flags,
                    int n_times)
{
    int64_t best = INT64_MAX;
    size_t n_ids = 0;
    for (int i = 0; i < n_times; i++) {
        struct token_list list = {0};
        struct error err = {0};
        int64_t start = clock_thread_cpu_ns();
        if (tokenizer_encode(tok, text, n_bytes, flags, &list, NULL, &err))
            fail(&err);
        int64_t took = clock_thread_cpu_ns() - start;
        best = took < best ? took : best;
        n_ids = list.n_ids;
        token_list_fini(&list);
    }
    printf("%zu bytes, %zu ids, %.3f ms, %.1f MB/s\n", n_bytes, n_ids, (double)best / 1e6,
           (double)n_bytes * 1e3 / (double)best);
}

static void print_info(const struct tokenizer *tok)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    fprintf(stderr, "%s, pre %s, %u tokens, bos %d, eos %d, unk %d, add_bos %d, ends", info->model,
            info->pre, info->vocab_size, info->bos_id, info->eos_id, info->unknown_id,
            info->add_bos);
    for (uint32_t i = 0; i < info->n_end_ids; i++)
        fprintf(stderr, " %u", info->end_ids[i]);
    fprintf(stderr, ", template %zu bytes, %u more\n",
            info->chat_template ? strlen(info->chat_template) : 0, info->n_templates);
}

int main(int argc, char **argv)
{
    unsigned flags = 0;
    const char *kind = NULL;
    int n_times = 0;
    for (int option; (option = getopt(argc, argv, "sbk:t:")) >= 0;) {
        flags |= option == 's' ? TOKENIZER_PARSE_SPECIAL : option == 'b' ? TOKENIZER_ADD_BOS : 0;
        kind = option == 'k' ? optarg : kind;
        n_times = option == 't' ? (int)strtol(optarg, NULL, 10) : n_times;
    }
    if (optind >= argc)
        return 2;
    int64_t start = clock_now_ns();
    struct tokenizer *tok = open_one(kind, argv[optind], argv + optind + 1, argc - optind - 1);
    fprintf(stderr, "open: %.1f ms; ", (double)(clock_now_ns() - start) / 1e6);
    print_info(tok);
    if (!tokenizer_info(tok)->add_bos)
        flags &= ~(unsigned)TOKENIZER_ADD_BOS;
    size_t n_in;
    char *in = read_all(stdin, &n_in);
    if (n_times)
        time_it(tok, in, n_in, flags, n_times);
    for (size_t at = 0; !n_times && at + 4 <= n_in;) {
        uint32_t n;
        struct token_list list = {0};
        struct strbuf text = {0};
        struct error err = {0};
        memcpy(&n, in + at, 4);
        if (tokenizer_encode(tok, in + at + 4, n, flags, &list, NULL, &err))
            fail(&err);
        at += 4 + (size_t)n;
        decode(tok, &list, &text);
        write_u32((uint32_t)list.n_ids);
        fwrite(list.ids, 4, list.n_ids, stdout);
        write_u32((uint32_t)text.n_bytes);
        fwrite(strbuf_str(&text), 1, text.n_bytes, stdout);
        token_list_fini(&list);
        strbuf_fini(&text);
    }
    free(in);
    tokenizer_close(tok);
    return 0;
}
