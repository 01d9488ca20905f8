/* The engine on the real sample model: 64 alone equal 64 at once, and an answer that makes sense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"
#include "engine/template/chat_templates.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_same.h"

static const struct same_variant variants[] = {
    {"64 at once", 1, 2, 32, 16384, 256, 512, 256, false, false, 0.75, 24, 0, NULL, 0},
    {"tp 2, chunks of 48", 2, 2, 32, 16384, 48, 128, 128, true, false, 0.75, 10, 0, NULL, 0},
    {"1 thread, small pool", 1, 1, 4, 480, 64, 128, 64, false, true, 0.0, 4, 0, NULL, 0},
    {"drafts", 1, 2, 32, 16384, 256, 512, 3, false, false, 0.0, 0, 16, NULL, 0},
};

static void test_64_alone_equal_64_at_once_sample_model(void **state)
{
    (void)state;
    same_check(model_sample_path(), DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]),
               16);
}

static void test_chat_answer_names_the_capital(void **state)
{
    (void)state;
    struct engine_config cfg = run_config(model_sample_path());
    struct engine *engine = run_open(&cfg);
    struct chat_message message = {.role = "user",
                                   .content = "What is the capital of France? One word.",
                                   .n_content_bytes = 40};
    struct chat_template_input input = {
        .messages = &message, .n_messages = 1, .add_generation_prompt = true};
    struct strbuf text = {0};
    struct token_list ids = {0};
    struct engine_request req;
    struct run_result r;
    struct error err;
    const struct chat_template *template;
    assert_int_equal(chat_templates_find(engine_chat_templates(engine), "", false, &template, &err),
                     0);
    assert_int_equal(chat_template_render(template, &input, &text, &err), 0);
    assert_int_equal(tokenizer_encode(engine_tokenizer(engine), strbuf_str(&text), text.n_bytes,
                                      TOKENIZER_PARSE_SPECIAL, &ids, NULL, &err),
                     0);
    engine_request_init(&req);
    req.prompt_ids = ids.ids;
    req.n_prompt_ids = (uint32_t)ids.n_ids;
    req.stopping.max_tokens = 40;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_STOP);
    if (!strstr(r.choices[0].text, "Paris"))
        fail_msg("the answer is \"%s\"", r.choices[0].text);
    run_result_fini(&r);
    run_close(engine);
    token_list_fini(&ids);
    strbuf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_answer_names_the_capital),
        cmocka_unit_test(test_64_alone_equal_64_at_once_sample_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
