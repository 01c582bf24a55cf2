//! Images of random content.
//!
//! An [`ImageSpec`] is a few small values that print on one line; the same spec always gives the
//! same pixels.

use super::Image;

/// What fills an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// One color.
    Constant,
    /// A linear ramp in a random direction, another for each channel.
    Gradient,
    /// Slow waves.
    Smooth,
    /// Each pixel one of two colors.
    TwoValued,
    /// Each byte uniform.
    Noise,
}

/// Everything an image is built from.
#[derive(Clone, Copy, Debug)]
pub struct ImageSpec {
    pub height: usize,
    pub width: usize,
    pub content: Content,
    /// Contrast is doubled and clipped, as in an over-exposed photograph: many bytes are 0 or 255.
    pub saturated: bool,
    pub seed: u64,
}

impl ImageSpec {
    /// The pixels.
    pub fn build(&self) -> Image {
        let mut random = SplitMix(self.seed);
        let colors: [[u8; 3]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| random.byte()));
        let waves: [[f64; 3]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| random.unit()));
        let mut rgb = Vec::with_capacity(self.height * self.width * 3);
        for i in 0..self.height {
            for j in 0..self.width {
                let color = colors[(random.next() & 1) as usize];
                for channel in 0..3 {
                    let value = match self.content {
                        Content::Constant => colors[0][channel],
                        Content::TwoValued => color[channel],
                        Content::Noise => random.byte(),
                        Content::Gradient => {
                            let y = i as f64 / self.height as f64;
                            let x = j as f64 / self.width as f64;
                            let [fall, _, _] = waves[channel];
                            (256.0 * (fall * y + (1.0 - fall) * x)) as u8
                        }
                        Content::Smooth => {
                            let [fy, fx, phase] = waves[channel];
                            let angle = 0.2 * (fy * i as f64 + fx * j as f64) + 6.0 * phase;
                            (128.0 + 127.0 * angle.sin()) as u8
                        }
                    };
                    rgb.push(if self.saturated { (2 * i32::from(value) - 128).clamp(0, 255) as u8 } else { value });
                }
            }
        }
        Image { height: self.height, width: self.width, rgb }
    }
}

/// Steele, Lea and Flood's generator: the tests want cheap and repeatable, nothing more.
pub struct SplitMix(pub u64);

impl SplitMix {
    #[expect(clippy::should_implement_trait, reason = "it never ends, and nobody iterates over it")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
