#pragma once
// Names of types that ATen/cuda/CUDAContext.h wants; nothing here is called.
#include "cusolver_common.h"
typedef struct cusolverDnContext* cusolverDnHandle_t;
