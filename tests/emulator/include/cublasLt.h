// For tests/emulator, which has products of its own (tests/emulator/matmul.cpp): only the names that others mention.
#pragma once

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_ALLOC_FAILED };
using cublasLtHandle_t = void*;
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* /*handle*/) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }
inline const char* cublasLtGetStatusName(cublasStatus_t /*status*/) { return "an error"; }
