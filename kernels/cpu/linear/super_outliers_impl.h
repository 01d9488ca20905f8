/* super_outliers_impl.h: the outlier plane of a row, part of linear_super_impl.h. Each function
 * adds 255 times the plane to the totals of the panels. */
#pragma once

/* Reads codes as bytes from the place where a tile has stored them. */
ALWAYS_INLINE void super_use_kept(struct super_source *src)
{
    src->codes[0] = src->keep[0];
    src->codes[1] = src->keep[1];
    src->code_run = INT8_RUN_BYTES;
    src->code_super = src->runs * INT8_RUN_BYTES;
}

ALWAYS_INLINE void super_add_plane(struct super_total *total, struct super_total plane)
{
    total->even = vi_add64(total->even, vi_sub64(vi_slli64(plane.even, 8), plane.even));
    total->odd = vi_add64(total->odd, vi_sub64(vi_slli64(plane.odd, 8), plane.odd));
}

/* For direct forms. A group's product is below 126·4·32·8191, or 126·4·127·255. */
ALWAYS_INLINE void super_outliers_direct(const struct linear_job *job, uint32_t row,
                                         const struct super_source *src, struct super_form f,
                                         unsigned code_bits, int n_panels,
                                         struct super_total total[])
{
    const struct act_outlier *o = act_outliers(job->act, row), *end = o + job->act->n_outliers[row];
    struct super_total plane[MAX_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++)
        plane[p] = (struct super_total){vi_zero(), vi_zero()};
    for (; o < end; o++) {
        size_t run = o->group / 8;
        vi start = super_start(o->minus_8, f.zero), hi = vi_set1(o->hi);
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++) {
            const int16_t *scales =
                (const int16_t *)(const void *)(src->scales[p] + run * src->scale_run);
            vi codes = super_codes(src->codes[p] + run * src->code_run, f, code_bits, o->group % 8),
               s = vi_mul32(super_dot(f, start, codes, hi), vi_load_i16(scales));
            if (f.offsets) /* (offset, 0) times (A, its sign) */
                s = vi_madd16(s, vi_load_u16(scales + PANEL_ROWS), vi_set1(o->in_high_half >> 16));
            super_add_direct(&plane[p], s);
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++)
        super_add_plane(&total[p], super_join(plane[p]));
}

/* For scaled forms and few rows: reads the packed codes and scales. */
ALWAYS_INLINE void super_outliers_scaled(const struct linear_job *job, uint32_t row,
                                         const struct super_source *src, struct super_form f,
                                         unsigned code_bits, int n_panels,
                                         struct super_total total[])
{
    const struct act_outlier *o = act_outliers(job->act, row), *end = o + job->act->n_outliers[row];
    const uint32_t runs = src->runs;
    struct super_total plane[MAX_PANELS];
    vi s[MAX_PANELS], m[MAX_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++)
        plane[p] = (struct super_total){vi_zero(), vi_zero()};
    while (o < end) {
        uint32_t i = o->group / 8 / runs, until = (i + 1) * runs * 8;
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++)
            s[p] = m[p] = vi_zero();
        for (; o < end && o->group < until; o++) {
            uint32_t g = o->group % 8, r = o->group / 8 - i * runs,
                     sub = r * f.subs + (f.subs == 2 ? g / 4 : 0);
            vi start = super_start(o->minus_8, f.zero), hi = vi_set1(o->hi);
#pragma GCC unroll 2
            for (int p = 0; p < n_panels; p++) {
                const uint8_t *super = src->packed[p] + (size_t)i * src->scale_super,
                              *codes = src->codes[p] + (size_t)i * src->code_super +
                                       (size_t)r * src->code_run;
                vi d = super_dot(f, start, super_codes(codes, f, code_bits, g), hi);
                s[p] = vi_add32(
                    s[p], vi_mul32(d, vi_load_i8(super + src->at.scales + 16 * sub + src->lane)));
                if (!f.offsets)
                    continue;
                vi mins = vi_loadu(super + src->at.mins + sub / 4 * 64 + src->lane * 4);
                mins = vi_and(vi_srl32(mins, 8 * super_min_byte(sub)), vi_set1(255));
                m[p] = vi_madd16(m[p], mins, vi_set1(o->in_high_half >> 16));
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++)
            super_flush(&plane[p], src->packed[p] + (size_t)i * src->scale_super, src->lane, f,
                        s[p], m[p]);
    }
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++)
        super_add_plane(&total[p], plane[p]);
}

/* For scaled forms: reads src->pairs and codes as bytes. Products of a group are below 2^15. Σ|hi|
 * ≤ Σ|a|/127.5 keeps either half below 0.232·K·33·1025 = 7,850·K, which fits an int32. */
ALWAYS_INLINE void super_outliers_split(const struct linear_job *job, uint32_t row,
                                        const struct super_source *src, struct super_form f,
                                        int n_panels, struct super_total total[])
{
    const struct act_outlier *o = act_outliers(job->act, row), *end = o + job->act->n_outliers[row];
    vi low[MAX_PANELS], high[MAX_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++)
        low[p] = high[p] = vi_zero();
    for (; o < end; o++) {
        size_t sub = f.subs == 2 ? o->group / 4 : o->group / 8;
        vi start = super_start(o->minus_8, f.zero), hi = vi_set1(o->hi),
           sum = vi_set1(o->in_high_half);
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++) {
            const uint8_t *pairs = src->pairs[p] + sub * 128;
            vi d = vi_dot(start, vi_loadu(src->codes[p] + (size_t)o->group * 64), hi);
            if (f.offsets) /* otherwise the offsets are 0 */
                d = vi_or(vi_and(d, vi_set1(0xFFFF)), sum);
            low[p] = vi_madd16(low[p], d, vi_loadu(pairs));
            high[p] = vi_madd16(high[p], d, vi_loadu(pairs + 64));
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++) {
        super_add(&total[p], low[p], vi_set1(255));
        super_add(&total[p], high[p], vi_set1(255 << SUPER_LOW_BITS));
    }
}

ALWAYS_INLINE void super_outliers(const struct linear_job *job, uint32_t row,
                                  const struct super_source *src, struct super_form f,
                                  unsigned code_bits, int n_panels, struct super_total total[])
{
    if (super_is_direct(f))
        super_outliers_direct(job, row, src, f, code_bits, n_panels, total);
    else if (code_bits == 8 && src->pairs[0] != NULL)
        super_outliers_split(job, row, src, f, n_panels, total);
    else
        super_outliers_scaled(job, row, src, f, code_bits, n_panels, total);
}
