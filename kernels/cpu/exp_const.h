/* exp_const.h: e^x in f32 for every kernel set: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in
 * r, times 2^n. Below −87 the result is exactly 0, above 88 it is e^88; NaN stays NaN. Every step
 * is one rounding (fma where two would do), so scalar and vector code agree to the bit. Error:
 * below 2 units in the last place. Coefficients: minimax on [−ln 2 / 2, ln 2 / 2] (Cephes' expf).
 */
#pragma once

#define EXP_MIN    (-87.0f)
#define EXP_MAX    88.0f
#define EXP_LOG2E  1.44269504088896341f
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_C5     1.9875691500e-4f
#define EXP_C4     1.3981999507e-3f
#define EXP_C3     8.3334519073e-3f
#define EXP_C2     4.1665795894e-2f
#define EXP_C1     1.6666665459e-1f
#define EXP_C0     5.0000001201e-1f

/* erfc(z) = t·exp(−z² + p(t)), t = 1/(1 + z/2), z ≥ 0 (W. J. Cody's form, relative error 1.2e-7);
 * p's coefficients from t^0 up. */
#define ERFC_N 10
#define ERFC_COEFFICIENTS                                                                          \
    {                                                                                              \
        -1.26551223f, 1.00002368f, 0.37409196f, 0.09678418f, -0.18628806f, 0.27886807f,            \
            -1.13520398f, 1.48851587f, -0.82215223f, 0.17087277f                                   \
    }
