//! Copies of regions: rows and planes with a pitch.

use std::ops::RangeBounds;

use thalweg_simt::host::{DeviceSlice, HostSlice, RangeError, counted, resolve};

use crate::driver::{Pitch, Rows};
use crate::error::{Error, Result};
use crate::memory::DeviceCopy;
use crate::stream::Stream;

/// A region of a buffer, which selects the elements of an image or a volume, or of a part of one:
/// planes of rows of columns. It is a view that has no buffer, so one region can stand for many
/// buffers.
///
/// Sizes are in elements and rows, not in bytes. The [copies](Stream::copy_region) check that a
/// region is inside its buffer.
///
/// ```
/// use thalweg::{Device, Region, stream_tags};
///
/// stream_tags!(Work);
/// let gpu = Device::best()?;
/// let work = gpu.stream::<Work>()?;
/// // An image of 4 rows of 6 columns, of which the middle 2 x 3 go to a dense buffer.
/// let image = work.bind(gpu.pinned_from(&(0..24u32).collect::<Vec<_>>())?)?;
/// let middle = Region::new(4, 6).crop(1..3, 2..5)?;
/// let mut part = work.alloc::<u32>(6)?;
/// work.copy_region_to_device(&image, middle, &mut part, Region::new(2, 3))?;
/// assert_eq!(work.read_blocking(&part)?, [8, 9, 10, 14, 15, 16]);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a region does nothing until it is copied"]
pub struct Region {
    /// The element in row 0, column 0 of plane 0.
    start: usize,
    /// Planes, rows and columns.
    extent: [usize; 3],
    /// The elements from the start of a row to that of the next.
    pitch: usize,
    /// The rows from the start of a plane to that of the next.
    height: usize,
}

impl Region {
    /// A plane of `height` rows of `width` columns, from element 0 on, without gaps.
    pub const fn new(height: usize, width: usize) -> Self {
        Self { start: 0, extent: [1, height, width], pitch: width, height }
    }

    /// `depth` planes, one after another. The number of rows from the start of a plane to that of
    /// the next is the current height.
    pub const fn planes(self, depth: usize) -> Self {
        Self { extent: [depth, self.extent[1], self.extent[2]], ..self }
    }

    /// Sets the number of elements from the start of a row to that of the next, which is at least
    /// the width.
    pub const fn pitch(self, elements: usize) -> Self {
        Self { pitch: elements, ..self }
    }

    /// Sets the number of rows from the start of a plane to that of the next, which is at least the
    /// height.
    pub const fn plane_pitch(self, rows: usize) -> Self {
        Self { height: rows, ..self }
    }

    /// Moves the region so many elements towards the end of the buffer, from where it is now.
    pub const fn offset(self, elements: usize) -> Self {
        Self { start: self.start.saturating_add(elements), ..self }
    }

    /// Returns the part of the region in these rows and columns, of every plane.
    ///
    /// # Errors
    /// A range is not inside the region.
    pub fn crop(self, rows: impl RangeBounds<usize>, columns: impl RangeBounds<usize>) -> Result<Self, RangeError> {
        let [depth, height, width] = self.extent;
        let (top, bottom) = resolve(rows, height)?;
        let (left, right) = resolve(columns, width)?;
        let skipped = top.saturating_mul(self.pitch).saturating_add(left);
        Ok(Self { extent: [depth, bottom - top, right - left], ..self.offset(skipped) })
    }

    /// Returns the part of the region in these planes, with all their rows and columns.
    ///
    /// # Errors
    /// The range is not inside the region.
    pub fn slab(self, planes: impl RangeBounds<usize>) -> Result<Self, RangeError> {
        let [depth, height, width] = self.extent;
        let (first, end) = resolve(planes, depth)?;
        let skipped = first.saturating_mul(self.height).saturating_mul(self.pitch);
        Ok(Self { extent: [end - first, height, width], ..self.offset(skipped) })
    }

    /// The number of planes, rows and columns.
    pub const fn extent(&self) -> [usize; 3] {
        self.extent
    }

    /// The number of elements; `usize::MAX` if there are more.
    pub const fn len(&self) -> usize {
        let [depth, height, width] = self.extent;
        depth.saturating_mul(height).saturating_mul(width)
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One past the last element; `None` if no buffer can have so many.
    fn end(&self) -> Option<usize> {
        let [depth, height, width] = self.extent;
        let last = (depth.checked_sub(1)?.checked_mul(self.height)?).checked_add(height.checked_sub(1)?)?;
        last.checked_mul(self.pitch)?.checked_add(width)?.checked_add(self.start)
    }

    /// Returns the layout of the rows in a buffer of `len` elements of `T` at `addr`.
    fn within<T: DeviceCopy>(&self, addr: u64, len: usize) -> Result<Pitch> {
        let [_, height, width] = self.extent;
        if self.pitch < width || self.height < height {
            return Err(Error::Parameter {
                name: "region",
                given: format!("rows {} apart and planes {} rows apart", self.pitch, self.height),
                expected: format!("at least {width} and {height}, so that rows do not overlap"),
            });
        }
        if self.end().is_none_or(|end| end > len) {
            let end = self.end().unwrap_or(usize::MAX);
            return Err(RangeError { start: self.start, end, len }.into());
        }
        let size = size_of::<T>();
        // The end of the region bounds neither the pitch of a single row nor the height of a single
        // plane.
        let row = self.pitch.checked_mul(size);
        let plane = row.and_then(|row| row.checked_mul(self.height)).filter(|&plane| plane <= isize::MAX as usize);
        let (Some(row), Some(_)) = (row, plane) else {
            return Err(Error::Parameter {
                name: "region",
                given: format!("rows {} elements apart and planes {} rows apart", self.pitch, self.height),
                expected: format!("planes at most 2^63 - 1 bytes apart, with elements of {}", counted(size, "byte")),
            });
        };
        // `start` is at most `end`, so this is inside the buffer.
        Ok(Pitch { addr: addr + (self.start * size) as u64, row, plane: self.height })
    }
}

impl<S> Stream<S> {
    /// Copies a region of page-locked memory to a region of the same extent on the device.
    ///
    /// On a GPU this is a 2-D copy, or a 3-D one if there are several planes. Rows of few bytes
    /// cost more than their bytes.
    ///
    /// # Errors
    /// The extents differ, a region is not inside its buffer, its rows overlap, its planes are 2^63
    /// bytes or more apart, or the device has failed or does not support the pitch (2^31 bytes or
    /// more).
    #[track_caller]
    pub fn copy_region_to_device<T: DeviceCopy>(
        self,
        from: &HostSlice<S, T>,
        source: Region,
        to: &mut DeviceSlice<S, T>,
        target: Region,
    ) -> Result<()> {
        let ends = [(from.host_ptr(), from.len(), source), (to.device_ptr(), to.len(), target)];
        // SAFETY: [order] By the contract of `from_raw`, which the makers of both slices kept, this
        // stream orders all uses of their memory. `to` is borrowed exclusively, so they do not
        // overlap.
        unsafe { self.copy_rows::<T>(ends, [true, false]) }
    }

    /// Copies a region on the device to a region of the same extent in page-locked memory.
    ///
    /// # Errors
    /// The errors of [`copy_region_to_device`](Self::copy_region_to_device).
    #[track_caller]
    pub fn copy_region_to_host<T: DeviceCopy>(
        self,
        from: &DeviceSlice<S, T>,
        source: Region,
        to: &mut HostSlice<S, T>,
        target: Region,
    ) -> Result<()> {
        let ends = [(from.device_ptr(), from.len(), source), (to.host_ptr(), to.len(), target)];
        // SAFETY: [order] As in `copy_region_to_device`.
        unsafe { self.copy_rows::<T>(ends, [false, true]) }
    }

    /// Copies a region on the device to a region of the same extent on the device.
    ///
    /// # Errors
    /// The errors of [`copy_region_to_device`](Self::copy_region_to_device).
    #[track_caller]
    pub fn copy_region<T: DeviceCopy>(
        self,
        from: &DeviceSlice<S, T>,
        source: Region,
        to: &mut DeviceSlice<S, T>,
        target: Region,
    ) -> Result<()> {
        let ends = [(from.device_ptr(), from.len(), source), (to.device_ptr(), to.len(), target)];
        // SAFETY: [order] As in `copy_region_to_device`.
        unsafe { self.copy_rows::<T>(ends, [false, false]) }
    }

    /// Copies between two regions. `host` says which of them is in host memory.
    ///
    /// # Safety
    /// At both addresses are as many elements as given, of which this stream orders all uses, and
    /// they do not overlap.
    #[track_caller]
    unsafe fn copy_rows<T: DeviceCopy>(self, ends: [(u64, usize, Region); 2], host: [bool; 2]) -> Result<()> {
        let [(from, from_len, source), (to, to_len, target)] = ends;
        if source.extent != target.extent {
            return Err(Error::Parameter {
                name: "target",
                given: format!("a region of {:?} planes, rows and columns", target.extent),
                expected: format!("the {:?} of the source", source.extent),
            });
        }
        if source.is_empty() {
            return Ok(());
        }
        let (from, to) = (source.within::<T>(from, from_len)?, target.within::<T>(to, to_len)?);
        let [planes, rows, columns] = source.extent;
        let copy = Rows { to, from, bytes: columns * size_of::<T>(), rows, planes };
        // SAFETY: [order] `within` checked that all rows are inside the buffers and that those of a
        // region do not overlap. The caller promises the rest.
        self.call(|s| unsafe { s.copy_rows(copy, host) })
    }
}
