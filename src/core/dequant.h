/* dequant.h - sizes of the ggml types that are read. Internal to core; values are turned into f32
 * by rk_ggml_dequant of gguf.h. */
#pragma once
#include "core/gguf.h"

/* Elements and bytes of one block; false where the type is not read. */
bool rk_ggml_block(int type, int *elements, int *bytes);
