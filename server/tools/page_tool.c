/* page_tool.c: build-time helper that joins the files of the page; not part of the product.
 *
 *   page_tool FOLDER OUT.h     write FOLDER/page.html as a C array, with its style sheet and
 * scripts inside, and their SHA-256 for a Content-Security-Policy */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/strbuf.h"

enum { BASE64_BYTES = 45 };

static int fail(const char *what, const char *about)
{
    fprintf(stderr, "page_tool: %s: %s\n", what, about);
    return 1;
}

static int read_file(const char *folder, const char *name, struct strbuf *out)
{
    char path[4096], block[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail("cannot open", path);
    for (size_t n; (n = fread(block, 1, sizeof(block), file)) > 0;)
        strbuf_add(out, block, n);
    int rc = ferror(file) || strbuf_failed(out) ? fail("cannot read", path) : 0;
    fclose(file);
    return rc;
}

/* Writes 32 bytes as base64. */
static void write_base64(const uint8_t digest[SHA256_BYTES], char out[BASE64_BYTES])
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t padded[SHA256_BYTES + 1] = {0};
    memcpy(padded, digest, SHA256_BYTES);
    for (size_t i = 0, o = 0; i < sizeof(padded); i += 3, o += 4) {
        unsigned bits = padded[i] * 65536u + padded[i + 1] * 256u + padded[i + 2];
        for (size_t k = 0; k < 4; k++)
            out[o + k] = letters[(bits >> (18 - 6 * k)) & 63];
    }
    out[BASE64_BYTES - 2] = '=';
    out[BASE64_BYTES - 1] = '\0';
}

static int hash(const struct strbuf *text, char out[BASE64_BYTES])
{
    struct sha256 *ctx;
    struct error err;
    uint8_t digest[SHA256_BYTES];
    if (sha256_create(&ctx, &err) != 0)
        return fail("cannot hash", err.message);
    sha256_update(ctx, text->data, text->n_bytes);
    sha256_final(ctx, digest);
    write_base64(digest, out);
    return 0;
}

/* Replaces `n` bytes of the page at `at` by an element with the content. */
static int replace(struct strbuf *page, const char *at, size_t n, const char *element,
                   const struct strbuf *content)
{
    struct strbuf joined;
    char close[32];
    snprintf(close, sizeof(close), "</%s>", element);
    if (strstr(strbuf_str(content), close))
        return fail("the content ends its own element", close);
    strbuf_init(&joined, 0);
    strbuf_add(&joined, page->data, (size_t)(at - page->data));
    strbuf_printf(&joined, "<%s>", element);
    strbuf_add(&joined, content->data, content->n_bytes);
    strbuf_add_str(&joined, close);
    strbuf_add_str(&joined, at + n);
    int rc = strbuf_failed(&joined) ? fail("out of memory", element) : 0;
    strbuf_fini(page);
    *page = joined;
    return rc;
}

/* Puts files into the page in place of the elements `open`NAME`close`. Adds the hash of each to
 * `hashes`, as the policy has them. */
static int insert_files(const char *folder, const char *open, const char *close,
                        const char *element, struct strbuf *page, struct strbuf *hashes)
{
    int n_files = 0;
    for (const char *at; (at = strstr(strbuf_str(page), open)); n_files++) {
        struct strbuf content;
        char name[64], digest[BASE64_BYTES];
        const char *begin = at + strlen(open), *end = strstr(begin, close);
        if (!end || (size_t)(end - begin) >= sizeof(name))
            return fail("page.html has no end of", open);
        snprintf(name, sizeof(name), "%.*s", (int)(end - begin), begin);
        strbuf_init(&content, 0);
        int rc = read_file(folder, name, &content) || hash(&content, digest) ||
                 replace(page, at, (size_t)(end - at) + strlen(close), element, &content);
        strbuf_fini(&content);
        if (rc)
            return rc;
        strbuf_printf(hashes, "%s'sha256-%s'", n_files ? " " : "", digest);
    }
    return n_files ? 0 : fail("page.html has no", open);
}

static int write_header(const char *path, const struct strbuf *page, const struct strbuf *styles,
                        const struct strbuf *scripts)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return fail("cannot create", path);
    fprintf(file,
            "/* Made by page_tool. */\n#define PAGE_DATA_STYLES \"%s\"\n"
            "#define PAGE_DATA_SCRIPTS \"%s\"\nstatic const char page_data_html[%zu] = {",
            strbuf_str(styles), strbuf_str(scripts), page->n_bytes);
    for (size_t i = 0; i < page->n_bytes; i++)
        fprintf(file, "%s%d,", i % 24 ? "" : "\n", (signed char)page->data[i]);
    fprintf(file, "\n};\n");
    int rc = ferror(file) ? fail("cannot write", path) : 0;
    return fclose(file) != 0 ? fail("cannot write", path) : rc;
}

int main(int argc, char *argv[])
{
    struct strbuf page, styles, scripts;
    if (argc != 3)
        return fail("usage", "page_tool FOLDER OUT.h");
    strbuf_init(&page, 0);
    strbuf_init(&styles, 0);
    strbuf_init(&scripts, 0);
    int rc =
        read_file(argv[1], "page.html", &page) ||
        insert_files(argv[1], "<link rel=\"stylesheet\" href=\"", "\">", "style", &page, &styles) ||
        insert_files(argv[1], "<script src=\"", "\"></script>", "script", &page, &scripts) ||
        write_header(argv[2], &page, &styles, &scripts);
    strbuf_fini(&page);
    strbuf_fini(&styles);
    strbuf_fini(&scripts);
    return rc;
}
