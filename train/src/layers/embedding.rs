//! The rows that models begin with.

use std::ops::Range;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Stream};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut};
use thalweg_kernels::train::{
    id_chains, id_gradients, image_rows, join_rows, newest_rows, patches, place_gradients, positions,
    products_with_two, sum_rows, text,
};

use super::{BackwardPass, ForwardPass, Linear};
use crate::batch::upload;
use crate::error::Result;
use crate::layout::ParameterLayout;
use crate::precision::Precision;

/// Rows from tokens of numbers that lie somewhere: a linear layer of the token, and a linear
/// function of its position. `x = tokens We^T + be + position Wp^T`, with Wp [width, 2].
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{ForwardPass, WeightsOn, TokenEmbedding};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// let embedding = TokenEmbedding::new(&mut layout, "", 1, 2)?; // a number a token, two a row
/// let mut weights = vec![0.0; layout.len()];
/// for (slot, numbers) in layout.slots().iter().zip([&[1.0, 2.0][..], &[0.0, 0.5], &[1.0, 0.0, 0.0, 1.0]]) {
///     weights[slot.range.clone()].copy_from_slice(numbers);
/// }
/// let parameters = WeightsOn::<_, f32>::new(&s, &weights)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let (token, position, mut x) = (s.upload_blocking(&[3.0])?, s.upload_blocking(&[10.0, 20.0])?, s.alloc(2)?);
/// embedding.forward(&mut ForwardPass::new(&s, parameters.view(), &mut matmul), 1, &token, &position, &mut x)?;
/// assert_eq!(s.read_blocking(&x)?, [13.0, 26.5]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenEmbedding {
    embed: Linear,
    position: Range<usize>,
}

impl TokenEmbedding {
    /// Adds the tensors `{prefix}embed.weight` [width, inputs], `{prefix}embed.bias` \[width\] and
    /// `{prefix}position.weight` [width, 2] to a layout.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, prefix: &str, inputs: usize, width: usize) -> Result<Self> {
        let embed = Linear::new(layout, &format!("{prefix}embed"), inputs, width)?;
        Ok(Self { embed, position: layout.add(format!("{prefix}position.weight"), &[width, 2])? })
    }

    /// Computes the rows `x` [rows, width] from `tokens` [rows, inputs] and `position` [rows, 2].
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        tokens: &DeviceSlice<S, E>,
        position: &DeviceSlice<S, f32>,
        x: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.embed.forward_f32(pass, rows, tokens, None, x)?;
        let width = self.embed.outputs();
        let weight = Matrix::new(pass.weights.values.slice(self.position.clone())?, width, 2).transposed();
        let epilogue = Epilogue { accumulate: true, ..Default::default() };
        let position = Matrix::new(position, rows, 2);
        pass.matmul.matmul(pass.stream, position, weight, &epilogue, MatrixMut::new(x, rows, width))
    }

    /// Computes the gradients of all weights from that of the rows: `dx` [rows, width] in `f32`,
    /// and `dy`, the same numbers as operands.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        tokens: &DeviceSlice<S, E>,
        position: &DeviceSlice<S, f32>,
        dx: &DeviceSlice<S, f32>,
        dy: &DeviceSlice<S, E>,
    ) -> thalweg::Result<()> {
        self.embed.backward_weight(pass, rows, tokens, dy)?;
        let BackwardPass { stream: s, gradients, parts, add, .. } = pass;
        let (shape, dw) = ([rows as u32, self.embed.outputs() as u32], gradients.at(&self.position)?);
        products_with_two(*s, shape, *add, dx, position, parts, dw)?;
        gradients.done(&self.position)
    }

    /// Computes the gradient `dtokens` [rows, inputs] of the tokens from that of the rows, `dy`.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn backward_input<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        dy: &DeviceSlice<S, E>,
        dtokens: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        self.embed.backward_input_f32(pass, rows, dy, dtokens)
    }
}

/// The rows of images and texts as the sequences of a decoder: sequence `b` has those of image `b`,
/// then those of text `b`.
pub(crate) struct JoinedRows<'a, S> {
    /// The number of image rows.
    pub(crate) images: usize,
    pub(crate) image_ends: &'a DeviceSlice<S, i32>,
    pub(crate) text_ends: &'a DeviceSlice<S, i32>,
    pub(crate) ids: &'a DeviceSlice<S, i32>,
}

impl<S> JoinedRows<'_, S> {
    /// Returns the numbers of image rows, text rows and sequences.
    fn extents(&self) -> [u32; 3] {
        [self.images, self.ids.len(), self.image_ends.len().saturating_sub(1)].map(|extent| extent as u32)
    }
}

/// Rows from ids: a table of a row for each id, and one of a row for each place in the text. The
/// table also makes the logits.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{ForwardPass, WeightsOn, TextEmbedding};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// let embedding = TextEmbedding::new(&mut layout, "", 3, 2, 1)?; // 3 ids, 2 places, a number a row
/// let mut weights = vec![0.0; layout.len()];
/// for (slot, numbers) in layout.slots().iter().zip([&[1.0, 2.0, 3.0][..], &[10.0, 20.0]]) {
///     weights[slot.range.clone()].copy_from_slice(numbers);
/// }
/// let parameters = WeightsOn::<_, f32>::new(&s, &weights)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
/// let mut forward = ForwardPass::new(&s, parameters.view(), &mut matmul);
///
/// let (ids, mut x, mut logits) = (s.upload_blocking(&[2, 0])?, s.alloc(2)?, s.alloc(3)?);
/// embedding.forward(&forward, 0, &ids, &mut x)?;
/// assert_eq!(s.read_blocking(&x)?, [13.0, 21.0]);
/// embedding.logits(&mut forward, 1, &x, &mut logits)?; // of the first row
/// assert_eq!(s.read_blocking(&logits)?, [13.0, 26.0, 39.0]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextEmbedding {
    token: Range<usize>,
    position: Range<usize>,
    ids: usize,
    places: usize,
    width: usize,
}

impl TextEmbedding {
    /// Adds the tensors `{prefix}tok.weight` [ids, width] and `{prefix}pos.weight` [places, width]
    /// to a layout.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(layout: &mut ParameterLayout, prefix: &str, ids: usize, places: usize, width: usize) -> Result<Self> {
        let token = layout.add(format!("{prefix}tok.weight"), &[ids, width])?;
        let position = layout.add(format!("{prefix}pos.weight"), &[places, width])?;
        Ok(Self { token, position, ids, places, width })
    }

    /// Computes the rows `x` [rows, width] of `ids` \[rows\], of which the first is at place
    /// `first` of the text.
    ///
    /// # Errors
    /// A length does not fit, a place is none, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &ForwardPass<'_, S, E>,
        first: usize,
        ids: &DeviceSlice<S, i32>,
        x: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let w = pass.weights.values;
        let (table, position) = (w.slice(self.token.clone())?, w.slice(self.position.clone())?);
        let [n, v, l, c, start] = [ids.len(), self.ids, self.places, self.width, first].map(|extent| extent as u32);
        text(pass.stream, n, v, l, c, start, ids, table, position, x)
    }

    /// Computes the rows `x` [rows, width] of the newest tokens of texts, whose state is
    /// `progress`.
    pub(crate) fn newest<S: Brand, E: Precision>(
        &self,
        pass: &ForwardPass<'_, S, E>,
        rows: usize,
        progress: &DeviceSlice<S, i32>,
        x: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let w = pass.weights.values;
        let (table, position) = (w.slice(self.token.clone())?, w.slice(self.position.clone())?);
        let [v, l, c] = self.extents();
        newest_rows(pass.stream, rows as u32, v, l, c, progress, table, position, x)
    }

    /// Computes the logits [rows, ids] of rows `x` [rows, width]: their products with the table.
    ///
    /// # Errors
    /// A buffer is too short, or the device failed.
    pub fn logits<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        logits: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let table = Matrix::new(pass.weights.operands.slice(self.token.clone())?, self.ids, self.width).transposed();
        let (x, logits) = (Matrix::new(x, rows, self.width), MatrixMut::new(logits, rows, self.ids));
        E::wide(pass.stream, pass.matmul, x, table, &Epilogue::default(), logits)
    }

    /// Computes the rows `x` [image and text rows, width] that enter a decoder. `image` are those
    /// of the images, [image rows, width].
    pub(crate) fn join<S: Brand, E: Precision>(
        &self,
        pass: &ForwardPass<'_, S, E>,
        joined: &JoinedRows<'_, S>,
        image: &DeviceSlice<S, f32>,
        x: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let w = pass.weights.values;
        let (table, position) = (w.slice(self.token.clone())?, w.slice(self.position.clone())?);
        let ([r, u, b], [v, l, c]) = (joined.extents(), self.extents());
        let JoinedRows { image_ends, text_ends, ids, .. } = joined;
        join_rows(pass.stream, r, u, c, b, v, l, image_ends, text_ends, image, ids, table, position, x)
    }

    fn extents(&self) -> [u32; 3] {
        [self.ids, self.places, self.width].map(|extent| extent as u32)
    }

    /// Computes the gradient of the table as that of the logits, and the gradient `dx` of the rows
    /// `x` [rows, width]. [`backward`](Self::backward) adds that of the rows of ids.
    pub(crate) fn backward_logits<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        rows: usize,
        x: &DeviceSlice<S, E>,
        dlogits: &DeviceSlice<S, E>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let BackwardPass { stream: s, weights, gradients, matmul, add, .. } = pass;
        let (d, x) = (Matrix::new(dlogits, rows, self.ids), Matrix::new(x, rows, self.width));
        let dw = MatrixMut::new(gradients.at(&self.token)?, self.ids, self.width);
        E::wide(s, matmul, d.transposed(), x, &Epilogue { accumulate: *add, ..Default::default() }, dw)?;
        let (d, table) = (Matrix::new(dlogits, rows, self.ids), weights.operands.slice(self.token.clone())?);
        let (table, dx) = (Matrix::new(table, self.ids, self.width), MatrixMut::new(dx, rows, self.width));
        E::wide(s, matmul, d, table, &Epilogue::default(), dx)
    }

    /// Computes the gradients of both tables from that of the joined rows, `dx`. `next` is room for
    /// an element for each id and each text row.
    pub(crate) fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        joined: &JoinedRows<'_, S>,
        dx: &DeviceSlice<S, f32>,
        next: &mut DeviceSlice<S, u32>,
    ) -> thalweg::Result<()> {
        let BackwardPass { stream: s, gradients, add, .. } = pass;
        let ([r, u, b], [v, l, c]) = (joined.extents(), self.extents());
        let &JoinedRows { image_ends, text_ends, ids, .. } = joined;
        place_gradients(*s, r + u, c, l, b, *add, image_ends, text_ends, dx, gradients.at(&self.position)?)?;
        gradients.done(&self.position)?;
        id_chains(*s, v, u, ids, next)?;
        id_gradients(*s, r, u, c, v, b, image_ends, text_ends, next, dx, gradients.at(&self.token)?)?;
        gradients.done(&self.token)
    }
}

/// Rows from square images, as timm's vision transformer has them: a linear layer over patches, a
/// class token in front if there is one, and a row for each place. The pixels have no gradient.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{ForwardPass, PatchActivationsOn, PatchEmbedding, WeightsOn};
/// use thalweg_train::{MatmulBackend, MatmulOn, ParameterLayout};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let mut layout = ParameterLayout::default();
/// // Images of 4 x 4 pixels in patches of 2 x 2, a class token, and 5 numbers a row.
/// let embedding = PatchEmbedding::new(&mut layout, "", 4, 2, true, 5)?;
/// let parameters = WeightsOn::<_, f32>::new(&s, &layout.init(7)?)?;
/// let mut matmul = MatmulOn::new(&s, MatmulBackend::default())?;
///
/// let pixels = s.upload_blocking(&[0.5; 3 * 4 * 4])?;
/// let (mut room, mut x) = (PatchActivationsOn::new(&s, &embedding, 1, false)?, s.alloc(5 * 5)?);
/// embedding.cut(&s, 1, &pixels, &mut room)?;
/// let mut forward = ForwardPass::new(&s, parameters.view(), &mut matmul);
/// embedding.forward(&mut forward, 1, &mut room, &mut x)?;
/// // The first row is the class token and its place.
/// let (x, w) = (s.read_blocking(&x)?, s.read_blocking(parameters.values())?);
/// let at = |k: usize| w[layout.slots()[k].range.clone()][0];
/// assert_eq!(x[0], at(2) + at(3));
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PatchEmbedding {
    proj: Linear,
    class: Option<Range<usize>>,
    position: Range<usize>,
    image_size: usize,
    patch_size: usize,
}

/// The memory of a [`PatchEmbedding`] for a batch of images: their patches, and the rows of these.
/// On a stream it has the form [`PatchActivationsOn<S, E>`](PatchActivationsOn).
#[derive(Debug, Resource)]
pub struct PatchActivations<E: Precision> {
    patches: DeviceBuffer<E>,
    /// The rows of the patches before their places are added, and later the gradient of one part of
    /// the rows after the other.
    rows: DeviceBuffer<f32>,
    operand: DeviceBuffer<E>,
    /// The numbers from 0 on, and those of the patches of as many images.
    images: DeviceBuffer<i32>,
    patch_ends: DeviceBuffer<i32>,
}

impl<S: LiveBrand, E: Precision> PatchActivationsOn<S, E> {
    /// Makes room for `images` images, and if it `learns` for a backward pass. The host waits for
    /// nothing.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new(s: &Stream<S>, embedding: &PatchEmbedding, images: usize, learns: bool) -> thalweg::Result<Self> {
        let (inputs, width, patches) = (embedding.proj.inputs(), embedding.proj.outputs(), embedding.patches());
        let numbers = if learns { 0..images + 2 } else { 0..0 };
        let ends: Vec<_> = numbers.clone().map(|image| (image * patches) as i32).collect();
        let mut room = Self {
            patches: s.alloc(images * patches * inputs)?,
            rows: s.alloc(images * patches * width)?,
            operand: s.alloc(if learns { images * patches * width * E::ROOM } else { 0 })?,
            images: s.alloc(numbers.len())?,
            patch_ends: s.alloc(numbers.len())?,
        };
        upload(s, &numbers.map(|image| image as i32).collect::<Vec<_>>(), &mut room.images)?;
        upload(s, &ends, &mut room.patch_ends)?;
        Ok(room)
    }
}

impl PatchEmbedding {
    /// Adds the tensors `{prefix}patch_embed.proj.weight` [width, 3, patch, patch] and its bias,
    /// `{prefix}cls_token` [1, 1, width] if there is one, and `{prefix}pos_embed` [1, rows, width]
    /// to a layout.
    ///
    /// # Errors
    /// The layout would have too many elements.
    pub fn new(
        layout: &mut ParameterLayout,
        prefix: &str,
        image_size: usize,
        patch_size: usize,
        class_token: bool,
        width: usize,
    ) -> Result<Self> {
        let name = format!("{prefix}patch_embed.proj");
        let proj = Linear::with_shape(layout, &name, &[width, 3, patch_size, patch_size])?;
        let class = class_token.then(|| layout.add(format!("{prefix}cls_token"), &[1, 1, width])).transpose()?;
        let rows = patches_of(image_size, patch_size).saturating_add(usize::from(class_token));
        let position = layout.add(format!("{prefix}pos_embed"), &[1, rows, width])?;
        Ok(Self { proj, class, position, image_size, patch_size })
    }

    fn patches(&self) -> usize {
        patches_of(self.image_size, self.patch_size)
    }

    /// Cuts `pixels` [images, 3, size, size] into patches, in raster order.
    ///
    /// # Errors
    /// The patches do not divide the images, there is no room for as many, a length does not fit,
    /// or the device failed.
    pub fn cut<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        images: usize,
        pixels: &DeviceSlice<S, f32>,
        room: &mut PatchActivationsOn<S, E>,
    ) -> thalweg::Result<()> {
        let to = room.patches.slice_mut(..images * self.patches() * self.proj.inputs())?;
        patches(s, [images as u32, 3, self.image_size as u32, self.patch_size as u32], pixels, to)
    }

    /// Computes the rows `x` [images, rows of an image, width] of the patches that
    /// [`cut`](Self::cut) made.
    ///
    /// # Errors
    /// There is no room for as many images, a length does not fit, or the device failed.
    pub fn forward<S: Brand, E: Precision>(
        &self,
        pass: &mut ForwardPass<'_, S, E>,
        images: usize,
        room: &mut PatchActivationsOn<S, E>,
        x: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let (patches, width) = (self.patches(), self.proj.outputs());
        let cut = room.patches.slice(..images * patches * self.proj.inputs())?;
        let rows = room.rows.slice_mut(..images * patches * width)?;
        self.proj.forward_f32(pass, images * patches, cut, None, rows)?;
        let w = pass.weights.values;
        let class = w.slice(self.class.clone().unwrap_or_default())?;
        let position = w.slice(self.position.clone())?;
        let [n, p, k, c] = [images, patches, usize::from(self.class.is_some()), width].map(|extent| extent as u32);
        positions(pass.stream, n, p, k, c, rows, class, position, x)
    }

    /// Computes the gradients of all weights from that of the rows, `dx` [images, rows of an image,
    /// width]. The patches are those of the forward pass.
    ///
    /// # Errors
    /// There is no room for a backward pass over as many images, a length does not fit, or the
    /// device failed.
    pub fn backward<S: Brand, E: Precision>(
        &self,
        pass: &mut BackwardPass<'_, S, E>,
        images: usize,
        dx: &DeviceSlice<S, f32>,
        room: &mut PatchActivationsOn<S, E>,
    ) -> thalweg::Result<()> {
        let (patches, width) = (self.patches(), self.proj.outputs());
        let BackwardPass { stream: s, gradients, parts, add, .. } = pass;
        // To the gradient of the places, an image is one long row. A launch that sums a few of them
        // needs no room for partial sums, which would be as long.
        let of_image = self.position.len();
        for first in (0..images).step_by(IMAGES) {
            let (count, add) = (IMAGES.min(images - first), *add || first > 0);
            let dx = dx.slice(first * of_image..(first + count) * of_image)?;
            sum_rows(*s, [count as u32, of_image as u32], add, dx, parts, gradients.at(&self.position)?)?;
        }
        gradients.done(&self.position)?;
        let PatchActivationsOn { patches: cut, rows, operand, images: numbers, patch_ends } = room;
        let (cut, rows) =
            (cut.slice(..images * patches * self.proj.inputs())?, rows.slice_mut(..images * patches * width)?);
        let dx = match &self.class {
            None => dx,
            Some(class) => {
                // The class token of an image is an image of one row, and the patches are its text.
                let [n, p, c] = [images, images * patches, width].map(|extent| extent as u32);
                let (ends, texts) = (numbers.slice(..=images)?, patch_ends.slice(..=images)?);
                let of_class = rows.slice_mut(..images * width)?;
                image_rows(*s, n, p, c, n, ends, texts, dx, of_class)?;
                sum_rows(*s, [n, c], *add, of_class, parts, gradients.at(class)?)?;
                gradients.done(class)?;
                // The patches are the image now, and a class token stands in front of each one.
                let (ends, texts) = (patch_ends.slice(..=images)?, numbers.slice(1..=images + 1)?);
                image_rows(*s, p, n, c, n, ends, texts, dx, rows)?;
                rows
            }
        };
        let dy = E::rounded(s, dx, operand)?;
        self.proj.backward_weight(pass, images * patches, cut, dy)
    }
}

/// The most images whose rows one launch sums.
const IMAGES: usize = 32;

/// Returns the number of patches of an image.
pub(crate) fn patches_of(image_size: usize, patch_size: usize) -> usize {
    image_size.checked_div(patch_size).unwrap_or(0).saturating_pow(2)
}
