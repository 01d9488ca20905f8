#include "kernels/cpu/recurrent/recurrent_span.h"
#include "kernels/cpu/ref/ref.h"

void ref_conv_taps(float *taps, size_t taps_stride, const float *w, uint32_t n, uint32_t width)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < width; t++)
            taps[t * taps_stride + i] = w[(size_t)i * width + t];
}

void ref_conv_row(const struct conv_row *row)
{
    for (uint32_t i = 0; i < row->n; i++) {
        float sum = row->bias != NULL ? row->bias[i] : 0.0f;
        for (uint32_t t = 0; t < row->width; t++)
            sum = fmaf(row->taps[t * row->taps_stride + i], row->x[t][i], sum);
        for (uint32_t t = 0; row->state != NULL && t + 1 < row->width; t++)
            row->state[t * row->state_stride + i] = row->x[t + 1][i];
        row->y[i] = row->silu ? maths_activate(sum, ACTIVATION_SILU) : sum;
    }
}

void ref_l2_norm(float *y, const float *x, uint32_t n, float eps, float scale)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    float factor = 1.0f / sqrtf(ref_sum_lanes(lanes) + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * factor * scale;
}

void ref_span_gates(const struct span_gates *g)
{
    for (uint32_t r = 0; r < g->n_rows; r++) {
        float t = maths_softplus(g->dt[r * g->dt_stride] + g->bias);
        g->decay[r] = maths_exp(t * g->a);
        g->gain[r] = g->beta != NULL ? maths_sigmoid(g->beta[r * g->beta_stride]) : t;
    }
}

/* Decays a column of S, adds k⊗d, and returns qᵀS. */
static float ref_step(const struct state_span *s, float *column, uint32_t row, float d)
{
    const float *k = s->k + row * s->k_stride, *q = s->q + row * s->k_stride;
    float sum = 0.0f;
    for (uint32_t i = 0; i < s->dim; i++) {
        column[i] = fmaf(k[i], d, column[i] * s->decay[row]);
        sum = fmaf(q[i], column[i], sum);
    }
    return sum;
}

static float ref_read(const struct state_span *s, const float *column, uint32_t row)
{
    const float *k = s->k + row * s->k_stride;
    float sum = 0.0f;
    for (uint32_t i = 0; i < s->dim; i++)
        sum = fmaf(k[i], column[i], sum);
    return sum;
}

/* Takes each column through all rows. */
static void ref_span(const struct state_span *s, bool is_delta)
{
    for (uint32_t j = 0; j < s->n_cols; j++) {
        float *column = s->work + (size_t)j * s->dim;
        for (uint32_t i = 0; i < s->dim && !s->resumes; i++)
            column[i] = s->from != NULL ? s->from[i * s->s_stride + j] : 0.0f;
        for (uint32_t r = 0; r < s->n_rows; r++) {
            float x = s->x[r * s->x_stride + j], *y = s->y + r * s->y_stride + j;
            if (is_delta)
                *y =
                    ref_step(s, column, r, s->gain[r] * (x - s->decay[r] * ref_read(s, column, r)));
            else
                *y = fmaf(s->skip, x, ref_step(s, column, r, s->gain[r] * x));
            if (s->writes[r] == RECURRENT_NONE)
                continue;
            float *slot = s->slots + s->writes[r] * s->slot_stride + j;
            for (uint32_t i = 0; i < s->dim; i++)
                slot[i * s->s_stride] = column[i];
        }
    }
}

void ref_delta_span(const struct state_span *span)
{
    ref_span(span, true);
}

void ref_ssm_span(const struct state_span *span)
{
    ref_span(span, false);
}
