#include "server/gateway/tgi/tgi_info.h"

#include <inttypes.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/text/json_write.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/replicas/route_table.h"
#include "server/gateway/tgi/tgi_model.h"

static void write_text(struct strbuf *out, const char *name, const char *text)
{
    strbuf_printf(out, "\"%s\":", name);
    if (text[0])
        json_write_text(out, text, strlen(text));
    else
        strbuf_add_str(out, "null");
    strbuf_add_char(out, ',');
}

static uint64_t lower(uint64_t of_server, uint32_t of_model)
{
    return of_model && of_model < of_server ? of_model : of_server;
}

int tgi_info_write(const struct route_table *routes, const struct tgi_model *model,
                   const struct gateway_limits *limits, struct strbuf *out, struct error *err)
{
    static const Sluice__V1__ModelInfo no_info = SLUICE__V1__MODEL_INFO__INIT;
    static const Sluice__V1__ModelLimits no_limits = SLUICE__V1__MODEL_LIMITS__INIT;
    const route *found;
    int rc = route_table_pick(
        routes, &(struct route_wish){.model = model->name.model, .version = model->name.version},
        &found, err);
    if (rc)
        return rc;
    const Sluice__V1__ModelInfo *info = found->info ? found->info : &no_info;
    const Sluice__V1__ModelLimits *most = info->limits ? info->limits : &no_limits;
    strbuf_add_char(out, '{');
    write_text(out, "model_id", found->model);
    write_text(out, "model_sha", info->weights_digest);
    write_text(out, "model_dtype", info->quantization);
    strbuf_printf(out,
                  "\"model_pipeline_tag\":\"text-generation\""
                  ",\"max_concurrent_requests\":%" PRIu64 ",\"max_best_of\":%" PRIu64
                  ",\"max_stop_sequences\":%" PRIu64 ",\"max_input_tokens\":%" PRIu32
                  ",\"max_total_tokens\":%" PRIu32 ",\"max_client_batch_size\":1",
                  lower(limits->max_concurrent, most->max_concurrent_requests),
                  lower(limits->max_choices, most->max_choices),
                  lower(limits->max_stop_strings, most->max_stop_strings),
                  most->max_prompt_tokens ? most->max_prompt_tokens : info->context_length,
                  info->context_length);
    strbuf_printf(out, ",\"router\":\"sluice-server\",\"version\":\"%s\",\"sha\":null",
                  SLUICE_VERSION);
    strbuf_add_str(out, ",\"docker_label\":null}");
    return 0;
}
