//! Products by cuBLASLt.
//!
//! It knows columns only: a row-major matrix is to it the transpose of that. So `c = a b` is asked for as
//! `c' = b' a'`. Which of its algorithms serves a shape is asked once and kept, so that equal shapes
//! give equal bits.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use parking_lot::Mutex;

use super::super::{DriverError, Matrix, Product, shape};
use crate::cuda::sources::Precision;

/// Bytes that an algorithm may use beside its operands, for each stream.
pub(super) const WORKSPACE: u64 = 32 << 20;

/// The library, and what it has said of each shape.
#[derive(Debug)]
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    algorithms: Mutex<HashMap<Key, sys::cublasLtMatmulAlgo_t>>,
}

// SAFETY: cuBLASLt's handles may be used by several threads at once.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

/// What an algorithm depends on: sizes, strides, transposition, addition, alignment, precisions of operands and result.
type Key = ([u64; 6], [bool; 3], [u32; 3], [Precision; 2]);

fn kind(precision: Precision) -> sys::cudaDataType {
    match precision {
        Precision::F32 => sys::cudaDataType::CUDA_R_32F,
        Precision::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

fn failed(call: &str, error: result::CublasError) -> DriverError {
    DriverError::Failed { call: call.into(), reason: format!("{:?}", error.0) }
}

/// A description that is given back when it goes.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(m: &Matrix) -> Result<Self, DriverError> {
        let made = result::create_matrix_layout(kind(m.precision), m.columns, m.rows, m.stride.max(1) as i64);
        made.map(Self).map_err(|e| failed("cublasLtMatrixLayoutCreate", e))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and gone after this.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(transposed: [bool; 2]) -> Result<Self, DriverError> {
        // Full f32: sums and products of 32 bits, no shorter mantissa. Products of brain floats are exact in them.
        let made = result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType::CUDA_R_32F,
        );
        let own = made.map(Self).map_err(|e| failed("cublasLtMatmulDescCreate", e))?;
        let attributes = [
            sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
            sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB,
        ];
        for (attribute, transposed) in attributes.into_iter().zip(transposed) {
            let operation = i32::from(transposed);
            // SAFETY: the attribute is a number of 32 bits, read before the call returns.
            unsafe {
                result::set_matmul_desc_attribute(
                    own.0,
                    attribute,
                    (&raw const operation).cast(),
                    size_of::<i32>(),
                )
            }
            .map_err(|e| failed("cublasLtMatmulDescSetAttribute", e))?;
        }
        Ok(own)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and gone after this.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// For operands and a result that begin at multiples of so many bytes. What is not said is taken for 256.
    fn new([left, right, out]: [u32; 3]) -> Result<Self, DriverError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let own = result::create_matmul_pref()
            .map(Self)
            .map_err(|e| failed("cublasLtMatmulPreferenceCreate", e))?;
        for (attribute, bytes) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, left),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, right),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
        ] {
            // SAFETY: the attribute is a number of 32 bits, read before the call returns.
            unsafe {
                result::set_matmul_pref_attribute(
                    own.0,
                    attribute,
                    (&raw const bytes).cast(),
                    size_of::<u32>(),
                )
            }
            .map_err(|e| failed("cublasLtMatmulPreferenceSetAttribute", e))?;
        }
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let workspace = WORKSPACE;
        // SAFETY: the attribute is a number of 64 bits, read before the call returns.
        unsafe {
            result::set_matmul_pref_attribute(
                own.0,
                attribute,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            )
        }
        .map_err(|e| failed("cublasLtMatmulPreferenceSetAttribute", e))?;
        Ok(own)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and gone after this.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Products {
    pub(super) fn new() -> Result<Self, DriverError> {
        let handle = result::create_handle().map_err(|e| failed("cublasLtCreate", e))?;
        Ok(Self { handle, algorithms: Mutex::default() })
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// The context is current and the stream its own; the workspace is [`WORKSPACE`] bytes that no other stream uses.
    pub(super) unsafe fn enqueue(
        &self,
        p: &Product,
        workspace: u64,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<(), DriverError> {
        let (m, n, k) = shape(p)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let (left, right, out) = (Layout::new(&p.b.0)?, Layout::new(&p.a.0)?, Layout::new(&p.c)?);
        let description = Description::new([p.b.1, p.a.1])?;
        // Strides are in the layouts.
        let align = |m: &Matrix| 1u32 << m.address.trailing_zeros().min(8);
        let key = (
            [m, n, k, p.a.0.stride, p.b.0.stride, p.c.stride],
            [p.a.1, p.b.1, p.add],
            [align(&p.a.0), align(&p.b.0), align(&p.c)],
            [p.a.0.precision, p.c.precision],
        );
        let known = self.algorithms.lock().get(&key).copied();
        let algorithm = if let Some(algorithm) = known {
            algorithm
        } else {
            let preference = Preference::new([align(&p.b.0), align(&p.a.0), align(&p.c)])?;
            // SAFETY: all handles live.
            let found = unsafe {
                result::get_matmul_algo_heuristic(
                    self.handle,
                    description.0,
                    left.0,
                    right.0,
                    out.0,
                    out.0,
                    preference.0,
                )
            };
            let found = found.map_err(|e| failed("cublasLtMatmulAlgoGetHeuristic", e))?.algo;
            *self.algorithms.lock().entry(key).or_insert(found)
        };
        let (one, add) = (1.0f32, f32::from(u8::from(p.add)));
        let at = |m: &Matrix| m.address as *mut c_void;
        // SAFETY: all handles live, the factors are read before the call returns, and addresses are the device's.
        unsafe {
            result::matmul(
                self.handle,
                description.0,
                (&raw const one).cast(),
                (&raw const add).cast(),
                at(&p.b.0),
                left.0,
                at(&p.a.0),
                right.0,
                at(&p.c),
                out.0,
                at(&p.c),
                out.0,
                &raw const algorithm,
                workspace as *mut c_void,
                WORKSPACE as usize,
                stream.cast(),
            )
        }
        .map_err(|e| failed("cublasLtMatmul", e))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and gone after this.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
