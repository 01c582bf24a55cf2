//! The images on which everything is measured: their sizes and their content.

/// The size of one image, or of several equal ones.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) images: usize,
    pub(crate) height: u32,
    pub(crate) width: u32,
}

impl Size {
    const fn new(name: &'static str, images: usize, height: u32, width: u32) -> Self {
        Self { name, images, height, width }
    }

    /// Returns the number of pixels of all images.
    pub(crate) fn pixels(self) -> usize {
        self.images * self.height as usize * self.width as usize
    }
}

pub(crate) const GPU: [Size; 4] = [
    Size::new("1080p", 1, 1080, 1920),
    Size::new("4K", 1, 2160, 3840),
    Size::new("8K", 1, 4320, 7680),
    Size::new("16 x 1080p", 16, 1080, 1920),
];
pub(crate) const CPU: [Size; 1] = [Size::new("1080p", 1, 1080, 1920)];
pub(crate) const QUICK: [Size; 2] = [Size::new("180p", 1, 180, 320), Size::new("3 x 180p", 3, 180, 320)];

/// The content of an image.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Content {
    Noise,
    Photo,
    Constant,
}

impl Content {
    pub(crate) const ALL: [Self; 3] = [Self::Noise, Self::Photo, Self::Constant];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Noise => "noise",
            Self::Photo => "photo",
            Self::Constant => "constant",
        }
    }

    /// Returns the bytes of all images of a size.
    pub(crate) fn pixels(self, size: Size, photo: &Photo) -> Vec<u8> {
        let (rows, width) = (size.images * size.height as usize, size.width as usize);
        match self {
            Self::Constant => [90, 140, 30].repeat(rows * width),
            Self::Noise => {
                let mut state = 1u64;
                let mut word = || {
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                    z ^ z >> 31
                };
                let bytes = 3 * rows * width;
                let mut noise: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
                noise.truncate(bytes);
                noise
            }
            Self::Photo => {
                let row = |y: usize| photo.row(y).iter().copied().cycle().take(3 * width);
                (0..rows).flat_map(row).collect()
            }
        }
    }
}

/// A photograph with which images are tiled.
pub(crate) struct Photo {
    height: usize,
    width: usize,
    rgb: Vec<u8>,
}

impl Photo {
    pub(crate) fn new() -> Self {
        let file = include_bytes!("../../assets/photos/astronaut.png");
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG file");
        let mut rgb = vec![0; reader.output_buffer_size().expect("it fits")];
        let info = reader.next_frame(&mut rgb).expect("a PNG file");
        assert_eq!(info.color_type, png::ColorType::Rgb);
        Self { height: info.height as usize, width: info.width as usize, rgb }
    }

    fn row(&self, y: usize) -> &[u8] {
        &self.rgb[y % self.height * self.width * 3..][..self.width * 3]
    }
}
