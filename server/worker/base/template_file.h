/* template_file.h: reads a chat template from a file that replaces the model's. */
#pragma once

struct chat_template;
struct error;

/* Reads and compiles a template file (at most CHAT_TEMPLATE_MAX_TEXT_BYTES). *out_template is
 * owned. */
int template_file_load(const char *path, struct chat_template **out_template, struct error *err);
