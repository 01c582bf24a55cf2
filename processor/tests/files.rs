//! The golden files: tensors, digests of tensors, and places of crops.

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use testkit::files::{read_png, repository};
use thalweg_processor::RgbImage;

/// An image that owns its pixels.
#[derive(Clone, Debug)]
pub(crate) struct Photo {
    pub(crate) size: [u32; 2],
    pub(crate) rgb: Vec<u8>,
}

impl Photo {
    pub(crate) fn view(&self) -> RgbImage<'_> {
        RgbImage { height: self.size[0], width: self.size[1], rgb: &self.rgb }
    }

    /// A photograph of the repository.
    pub(crate) fn read(name: &str) -> Self {
        let image = read_png(format!("assets/photos/{name}.png"));
        Self { size: [image.height as u32, image.width as u32], rgb: image.rgb }
    }

    /// A crop, which goes on at the other edge.
    pub(crate) fn crop(&self, size: [u32; 2], at: [u32; 2]) -> Self {
        let [h, w] = self.size;
        let row = |y: u32| {
            let y = (y + at[0]) % h;
            (0..size[1]).map(move |x| 3 * (y * w + (x + at[1]) % w) as usize)
        };
        let rgb = (0..size[0]).flat_map(row).flat_map(|i| self.rgb[i..i + 3].iter().copied()).collect();
        Self { size, rgb }
    }
}

pub(crate) fn views(photos: &[Photo]) -> Vec<RgbImage<'_>> {
    photos.iter().map(Photo::view).collect()
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The little-endian bytes of numbers.
pub(crate) trait Bytes {
    const DTYPE: &'static str;
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! bytes {
    ($($t:ty: $name:literal;)*) => {$(
        impl Bytes for [$t] {
            const DTYPE: &'static str = $name;
            fn bytes(&self) -> Vec<u8> {
                self.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
        }
    )*};
}
bytes! { u8: "U8"; i32: "I32"; i64: "I64"; f32: "F32"; }

/// A golden file.
pub(crate) struct Golden {
    bytes: Vec<u8>,
    pub(crate) meta: HashMap<String, String>,
    name: &'static str,
}

impl Golden {
    pub(crate) fn read(name: &'static str) -> Self {
        let bytes = std::fs::read(repository(format!("tests/golden/processor/{name}.safetensors"))).unwrap();
        let (_, meta) = SafeTensors::read_metadata(&bytes).unwrap();
        let meta = meta.metadata().clone().unwrap_or_default();
        Self { bytes, meta, name }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// The names of tensors, those with a digest only among them.
    pub(crate) fn names(&self) -> Vec<String> {
        let digests = self.meta.keys().filter_map(|key| key.strip_prefix("digest.").map(str::to_owned));
        let mut names: Vec<_> = self.file().names().into_iter().map(str::to_owned).chain(digests).collect();
        names.sort();
        names
    }

    pub(crate) fn json(&self, key: &str) -> Value {
        serde_json::from_str(&self.meta[key]).unwrap()
    }

    /// The little-endian numbers of a tensor of 4 or 8 bytes each.
    pub(crate) fn numbers<const N: usize, T>(&self, name: &str, from: impl Fn([u8; N]) -> T) -> Vec<T> {
        let file = self.file();
        let data = file.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name)).data();
        data.as_chunks::<N>().0.iter().map(|bytes| from(*bytes)).collect()
    }

    /// An image: a crop of a photograph, or a tensor.
    pub(crate) fn image(&self, name: &str) -> Option<Photo> {
        if let Some(place) = self.meta.get(&format!("crop.{name}")) {
            let (photo, h, w, top, left): (String, u32, u32, u32, u32) = serde_json::from_str(place).unwrap();
            return Some(Photo::read(&photo).crop([h, w], [top, left]));
        }
        let file = self.file();
        let tensor = file.tensor(name).ok()?;
        let size = [tensor.shape()[0] as u32, tensor.shape()[1] as u32];
        Some(Photo { size, rgb: tensor.data().to_vec() })
    }

    /// The images `image.0`, `image.1`, ...
    pub(crate) fn images(&self) -> Vec<Photo> {
        (0..).map_while(|i| self.image(&format!("image.{i}"))).collect()
    }

    /// Asserts that a tensor of the file has these numbers, bit for bit.
    #[track_caller]
    pub(crate) fn assert_equal<T>(&self, name: &str, shape: &[usize], numbers: &[T])
    where
        [T]: Bytes,
    {
        let (bytes, dtype) = (numbers.bytes(), <[T]>::DTYPE);
        let what = format!("{}: {name}", self.name);
        if let Some(entry) = self.meta.get(&format!("digest.{name}")) {
            let expected: (String, Vec<usize>, String) = serde_json::from_str(entry).unwrap();
            assert_eq!((dtype, shape, digest(&bytes)), (&*expected.0, &*expected.1, expected.2), "{what}");
            return;
        }
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((format!("{:?}", tensor.dtype()), tensor.shape()), (dtype.into(), shape), "{what}");
        assert!(tensor.data() == bytes, "{what} differs");
    }
}
