/* shape_mixers.h: reads the numbers of mixers other than plain attention. Internal to
 * shape_layers.c. */
#pragma once

#include "engine/model/shape_reader.h"

/* Fills s->state if a layer has a state. The kinds of the layers are set. */
int shape_mixers_read_states(struct shape_reader *r, struct model_shape *s);

/* Fills s->latent and the numbers of layer i, whose mixer is latent attention. */
int shape_mixers_read_latent(struct shape_reader *r, struct model_shape *s, uint32_t i,
                             struct model_layer *layer);

/* The delta net and Mamba-2 convolve with SiLU. Refuses another activation, if the file's key gives
 * it to the convolution, too. The shape's activation has been read. */
int shape_mixers_check_activation(struct shape_reader *r, const struct model_shape *s);

/* Reads the factors of matrices, after s->value_scale. */
int shape_mixers_read_scales(struct shape_reader *r, struct model_shape *s);

/* Sets the source of K and V for layers that share those of a layer before them. Doubles the FFN of
 * these layers where the model says so. The numbers of all layers are set. */
int shape_mixers_read_shared_kv(struct shape_reader *r, struct model_shape *s);
