#include "engine/format/file_kind.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/system/source.h"
#include "base/text/escape.h"

struct beginning {
    const unsigned char *bytes;
    size_t n_bytes;
    uint64_t size_bytes;
};

static bool has_magic(const struct beginning *b, size_t at, const char *magic, size_t n_magic)
{
    return b->n_bytes >= at + n_magic && memcmp(b->bytes + at, magic, n_magic) == 0;
}

static bool has_text(const struct beginning *b, const char *text)
{
    return memmem(b->bytes, b->n_bytes, text, strlen(text)) != NULL;
}

/* Index of the first byte that is neither white space nor a byte order mark; n_bytes if there is
 * none. */
static size_t first_mark(const struct beginning *b)
{
    size_t i = has_magic(b, 0, "\xEF\xBB\xBF", 3) ? 3 : 0;
    while (i < b->n_bytes && isspace(b->bytes[i]))
        i++;
    return i;
}

/* A length in 8 bytes, followed by JSON of that length. */
static bool is_safetensors(const struct beginning *b)
{
    uint64_t n_header = 0;
    if (b->n_bytes < 10 || b->bytes[8] != '{')
        return false;
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | b->bytes[i];
    return n_header >= 2 && n_header <= b->size_bytes - 8;
}

static bool is_html(const struct beginning *b)
{
    static const char *const tags[] = {"<!doctype", "<html", "<head", "<body", "<?xml", "<!--"};
    size_t at = first_mark(b);
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
        size_t n = strlen(tags[i]);
        if (b->n_bytes - at >= n && strncasecmp((const char *)b->bytes + at, tags[i], n) == 0)
            return true;
    }
    return false;
}

static enum file_kind json_kind(const struct beginning *b)
{
    if (has_text(b, "\"weight_map\""))
        return FILE_KIND_SAFETENSORS_INDEX;
    if (has_text(b, "application/vnd.ollama.") ||
        (has_text(b, "\"schemaVersion\"") && has_text(b, "\"layers\"")))
        return FILE_KIND_OLLAMA_MANIFEST;
    if (has_text(b, "\"architectures\"") || has_text(b, "\"model_type\""))
        return FILE_KIND_HF_CONFIG;
    return FILE_KIND_JSON;
}

static bool is_text(const struct beginning *b)
{
    for (size_t i = 0; i < b->n_bytes; i++)
        if (b->bytes[i] < 0x20 && !isspace(b->bytes[i]))
            return false;
    return true;
}

static bool is_zeros(const struct beginning *b)
{
    for (size_t i = 0; i < b->n_bytes; i++)
        if (b->bytes[i])
            return false;
    return true;
}

static const struct {
    size_t at, n_magic;
    char magic[12];
    enum file_kind kind;
} magics[] = {
    {0, 4, "GGUF", FILE_KIND_GGUF},
    {0, 2, "\x1F\x8B", FILE_KIND_GZIP},
    {0, 4, "\x28\xB5\x2F\xFD", FILE_KIND_ZSTD},
    {0, 6,
     "\xFD"
     "7zXZ",
     FILE_KIND_XZ},
    {0, 3, "BZh", FILE_KIND_BZIP2},
    {0, 6, "7z\xBC\xAF\x27\x1C", FILE_KIND_7Z},
    {257, 5, "ustar", FILE_KIND_TAR},
    {0, 8, "\x89HDF\r\n\x1A\n", FILE_KIND_HDF5},
    {0, 6, "\x93NUMPY", FILE_KIND_NUMPY},
    {0, 4,
     "\x7F"
     "ELF",
     FILE_KIND_PROGRAM},
    {0, 2, "#!", FILE_KIND_PROGRAM},
    {0, 4, "lmgg", FILE_KIND_GGML},
    {0, 4, "fmgg", FILE_KIND_GGML},
    {0, 4, "tjgg", FILE_KIND_GGML},
    {0, 4, "algg", FILE_KIND_GGML},
};

enum file_kind file_kind_of(const unsigned char *bytes, size_t n_bytes, uint64_t size_bytes)
{
    const struct beginning b = {bytes, n_bytes, size_bytes};
    if (!size_bytes)
        return FILE_KIND_EMPTY;
    if (has_magic(&b, 0, "version https://git-lfs.", 24) ||
        has_magic(&b, 0, "version https://hawser.", 23))
        return FILE_KIND_LFS_POINTER;
    for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
        if (has_magic(&b, magics[i].at, magics[i].magic, magics[i].n_magic))
            return magics[i].kind;
    if (has_magic(&b, 0, "PK\x03\x04", 4) || has_magic(&b, 0, "PK\x05\x06", 4))
        return has_text(&b, "/data.pkl") ? FILE_KIND_PYTORCH : FILE_KIND_ZIP;
    if (n_bytes >= 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5)
        return FILE_KIND_PYTORCH; /* a pickle of protocol 2 to 5 */
    if (is_safetensors(&b))
        return FILE_KIND_SAFETENSORS;
    if (is_html(&b))
        return FILE_KIND_HTML;
    size_t at = first_mark(&b);
    if (at < n_bytes && (bytes[at] == '{' || bytes[at] == '[') && is_text(&b))
        return json_kind(&b);
    if (is_zeros(&b))
        return FILE_KIND_ZEROS;
    return is_text(&b) ? FILE_KIND_TEXT : FILE_KIND_UNKNOWN;
}

#define CONVERT                                                                                    \
    "get the model as safetensors or GGUF, or convert it with llama.cpp's convert_hf_to_gguf.py"
#define DOWNLOAD "download the file again"
#define FOLDER   "give its folder, which holds config.json too"
#define REQUIRED "a GGUF file or a Hugging Face folder"

/* Message: "<file> is <what>, but <required> is required: <remedy>". */
static const struct {
    const char *what, *remedy;
} words[N_FILE_KINDS] = {
    [FILE_KIND_EMPTY] = {"an empty file", DOWNLOAD},
    [FILE_KIND_LFS_POINTER] =
        {"a Git LFS pointer, which only names the model",
         "run \"git lfs pull\" in its repository, or download the file itself"},
    [FILE_KIND_SAFETENSORS] = {"a safetensors file", FOLDER},
    [FILE_KIND_SAFETENSORS_INDEX] = {"the index of a safetensors model", FOLDER},
    [FILE_KIND_PYTORCH] = {"a PyTorch checkpoint", CONVERT},
    [FILE_KIND_GGML] = {"a GGML file, the format before GGUF",
                        "get the model as a GGUF file, or convert its original again"},
    [FILE_KIND_OLLAMA_MANIFEST] =
        {"an Ollama manifest, which only names the model",
         "give the file sha256-HEX in Ollama's blobs folder, where sha256:HEX is the digest of the "
         "layer of type application/vnd.ollama.image.model"},
    [FILE_KIND_HF_CONFIG] = {"the configuration of a Hugging Face model", FOLDER},
    [FILE_KIND_JSON] = {"a JSON text, probably from a failed download", DOWNLOAD},
    [FILE_KIND_HTML] = {"a web page, probably from a failed download",
                        DOWNLOAD " (a gated model needs its access token)"},
    [FILE_KIND_GZIP] = {"compressed with gzip", "decompress it with \"gzip -d\""},
    [FILE_KIND_ZSTD] = {"compressed with Zstandard", "decompress it with \"zstd -d\""},
    [FILE_KIND_XZ] = {"compressed with xz", "decompress it with \"xz -d\""},
    [FILE_KIND_BZIP2] = {"compressed with bzip2", "decompress it with \"bzip2 -d\""},
    [FILE_KIND_ZIP] = {"a zip archive", "unpack it with \"unzip\" and give the GGUF file in it"},
    [FILE_KIND_7Z] = {"a 7z archive", "unpack it with \"7z x\" and give the GGUF file in it"},
    [FILE_KIND_TAR] = {"a tar archive", "unpack it with \"tar -xf\" and give the GGUF file in it"},
    [FILE_KIND_HDF5] = {"an HDF5 file, as Keras writes models", CONVERT},
    [FILE_KIND_NUMPY] = {"a NumPy array", CONVERT},
    [FILE_KIND_PROGRAM] = {"a program", "give the path of the GGUF file"},
    [FILE_KIND_ZEROS] =
        {"full of zeros in place of its header, probably from an unfinished download", DOWNLOAD},
    [FILE_KIND_TEXT] = {"a text, probably from a failed download", DOWNLOAD},
};

static int read_kind(struct source *source, unsigned char bytes[FILE_KIND_LOOK_BYTES],
                     enum file_kind *out_kind, struct error *err)
{
    uint64_t size = source_size(source);
    size_t n = size < FILE_KIND_LOOK_BYTES ? (size_t)size : FILE_KIND_LOOK_BYTES;
    int rc = source_read(source, 0, bytes, n, err);
    if (!rc)
        *out_kind = file_kind_of(bytes, n, size);
    return rc;
}

int file_kind_check(struct source *source, struct error *err)
{
    unsigned char bytes[FILE_KIND_LOOK_BYTES] = {0};
    char text[ESCAPE_MAX_BYTES];
    uint64_t size = source_size(source);
    enum file_kind kind = FILE_KIND_UNKNOWN;
    int rc = read_kind(source, bytes, &kind, err);
    if (rc || kind == FILE_KIND_GGUF)
        return rc;
    if (kind == FILE_KIND_UNKNOWN)
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s begins with \"%s\" and is of no known kind, but " REQUIRED
                  " is required: give the path of the GGUF file, or download it again",
                  source_name(source),
                  escape_text((const char *)bytes, size < 8 ? (size_t)size : 8, text));
    else
        error_set(err, STATUS_INVALID_ARGUMENT, "%s is %s, but " REQUIRED " is required: %s",
                  source_name(source), words[kind].what, words[kind].remedy);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int file_kind_explain(struct source *source, const char *label, const char *required,
                      struct error *err)
{
    unsigned char bytes[FILE_KIND_LOOK_BYTES];
    enum file_kind kind = FILE_KIND_UNKNOWN;
    int rc = read_kind(source, bytes, &kind, err);
    if (rc)
        return rc;
    if (kind == FILE_KIND_UNKNOWN || kind == FILE_KIND_GGUF || kind == FILE_KIND_SAFETENSORS ||
        kind == FILE_KIND_SAFETENSORS_INDEX || kind == FILE_KIND_HF_CONFIG ||
        kind == FILE_KIND_JSON)
        return 0;
    error_set(err, STATUS_INVALID_ARGUMENT, "%s is %s, but %s is required: %s", label,
              words[kind].what, required, words[kind].remedy);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}
