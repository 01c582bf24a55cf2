//! Maps for the copy engine for tiles.

use cudarc::driver::sys;
use thalweg_simt::host::{MatrixView, TensorMap};

use super::{Cuda, Failure};
use crate::driver::ffi;

impl Cuda {
    /// Makes a map of matrices with boxes of 64 x 64 elements of 16 bits. The map of one matrix has
    /// two dimensions, and that of several has three. It only writes the map: the driver accesses
    /// neither the device nor the matrices.
    pub(crate) fn tensor_map(&self, tiles: &MatrixView) -> Result<TensorMap, Failure> {
        use sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_UINT16 as ELEMENT;
        use sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as ZEROS;
        use sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE as INTERLEAVE;
        use sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B as PROMOTION;
        use sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B as SWIZZLE;
        let _current = self.enter()?; // the driver wants a context even for this
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: [call] `map` has the alignment that its type states, and the call stores the map
        // there. The arrays have three extents, two strides, and three extents and strides of the
        // box, as rank 3 requires, and rank 2 reads fewer. The driver checks their values.
        unsafe {
            ffi::cuTensorMapEncodeTiled(
                &mut map,
                ELEMENT as u32,
                if tiles.extents()[2] == 1 { 2 } else { 3 },
                std::ptr::with_exposed_provenance_mut(tiles.address() as usize),
                tiles.extents().as_ptr(),
                tiles.strides().as_ptr(),
                [64, 64, 1].as_ptr(),
                [1, 1, 1].as_ptr(),
                INTERLEAVE as u32,
                SWIZZLE as u32,
                PROMOTION as u32,
                ZEROS as u32,
            )?;
        }
        Ok(map.opaque)
    }
}
