//! A data set: its list of images, its tokens in memory, and the part that is kept apart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use thalweg::{Device, LiveBrand, Size};
use thalweg_loader::{FolderContents, list_folder};
use thalweg_vision::augment::philox;
use thalweg_vision::{Pipeline, TokenParams, TokenSet};

use super::ranks::{Result as Ranked, Team};
use crate::args::DecodeArg;
use crate::inputs::{EXTENSIONS, cannot_read};
use crate::photos::{CHUNK_BYTES, CHUNK_IMAGES, Photos, Pixels};
use crate::report::Decoded;

impl Pixels {
    /// Makes the tokens of each photograph.
    pub(crate) fn tokens(self, pipeline: &Pipeline) -> Vec<thalweg::Result<TokenSet>> {
        match self {
            Self::Host(images) => pipeline.run(&images),
            Self::Device(images) => {
                let sets = pipeline.run_pixels(images).into_iter();
                sets.map(|set| set.map_err(|returned| returned.error)).collect()
            }
        }
    }
}

/// The numbers of a token.
pub(crate) const INPUTS: usize = thalweg_vision::PLANES;

/// Images with the names of their classes.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) paths: Vec<PathBuf>,
    /// The class of each image.
    names: Vec<String>,
}

impl Listing {
    /// Lists a folder with a folder for each class, or the images of a table.
    pub(crate) fn read(data: &Path) -> Result<Self, String> {
        let wrong = |what: String| format!("{}: {what}", data.display());
        let mut found = Self { paths: Vec::new(), names: Vec::new() };
        if data.is_dir() {
            for folder in list(data, false)?.subfolders {
                let class = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let paths = list(&folder, true)?.files;
                found.names.extend(std::iter::repeat_n(class, paths.len()));
                found.paths.extend(paths);
            }
            if found.paths.is_empty() {
                return Err(wrong(
                    "no *.png, *.jpg, *.jpeg or *.webp in its subfolders; expected a folder for each class".into(),
                ));
            }
            return Ok(found);
        }
        let text = fs::read_to_string(data).map_err(|e| wrong(format!("cannot read it: {e}")))?;
        let base = data.parent().unwrap_or(Path::new(""));
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let pair = text.rsplit_once('\t').or_else(|| text.rsplit_once(','));
            let Some((path, class)) = pair.map(|(path, class)| (path.trim(), class.trim())) else {
                return Err(wrong(format!("line {line}: expected a path and a class, separated by a tab or a comma")));
            };
            if line == 1 && (path, class) == ("path", "label") {
                continue;
            }
            if path.is_empty() || class.is_empty() {
                return Err(wrong(format!("line {line}: the path or the class is empty")));
            }
            found.paths.push(base.join(path));
            found.names.push(class.to_owned());
        }
        if found.paths.is_empty() {
            return Err(wrong("the table has no images".into()));
        }
        Ok(found)
    }

    /// Returns the names of the classes in order.
    pub(crate) fn classes(&self) -> Vec<String> {
        let mut classes = self.names.clone();
        classes.sort();
        classes.dedup();
        classes
    }

    /// Returns the class of each image as its place among `classes`.
    pub(crate) fn labels(&self, classes: &[String]) -> Result<Vec<i32>, String> {
        let place = |(name, path): (&String, &PathBuf)| match classes.binary_search(name) {
            Ok(place) => Ok(place as i32),
            Err(_) => Err(format!("{}: the model has no class {name:?}", path.display())),
        };
        self.names.iter().zip(&self.paths).map(place).collect()
    }
}

/// Returns a number of a list of images: of the names of the classes, and of the class of each
/// image.
pub(super) fn hash(classes: &[String], labels: [&[i32]; 2]) -> u64 {
    let names = classes.iter().flat_map(|name| name.bytes().chain([0])).map(u32::from);
    let labels = labels.into_iter().flat_map(|labels| labels.iter().map(|&label| label as u32).chain([u32::MAX]));
    fnv(names.chain(labels))
}

fn fnv(words: impl Iterator<Item = u32>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3))
}

/// Lists a folder that can be read.
fn list(folder: &Path, recursive: bool) -> Result<FolderContents, String> {
    let found = list_folder(folder, &EXTENSIONS, recursive);
    match found.unreadable.first() {
        Some(folder) => Err(format!("{}: {}", folder.path.display(), cannot_read(folder))),
        None => Ok(found),
    }
}

/// The tokens of images, one image after another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) tokens: Vec<f32>,
    pub(crate) position: Vec<f32>,
    /// The starts of the tokens of each image, and the end.
    starts: Vec<usize>,
    pub(crate) labels: Vec<i32>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { tokens: Vec::new(), position: Vec::new(), starts: vec![0], labels: Vec::new() }
    }
}

/// A batch in the form that a model takes.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    tokens: Vec<f32>,
    position: Vec<f32>,
    cu_seqlens: Vec<i32>,
    labels: Vec<i32>,
}

impl Packed {
    pub(crate) fn batch(&self) -> thalweg_train::TokenBatch<'_> {
        let Self { tokens, position, cu_seqlens, labels } = self;
        thalweg_train::TokenBatch { tokens, position, cu_seqlens, labels }
    }
}

impl Tokens {
    /// Returns the number of images.
    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn add(&mut self, set: &TokenSet, label: i32) {
        self.tokens.extend(&set.tokens);
        self.position.extend(&set.position);
        self.starts.push(self.position.len() / 2);
        self.labels.push(label);
    }

    /// Takes the images of a batch over.
    pub(crate) fn take(&mut self, packed: &Packed) {
        let before = self.position.len() / 2;
        self.tokens.extend(&packed.tokens);
        self.position.extend(&packed.position);
        self.starts.extend(packed.cu_seqlens.iter().skip(1).map(|&end| before + end as usize));
        self.labels.extend(&packed.labels);
    }

    /// Returns the tokens of all ranks, in the order of the images, where those of this rank are
    /// `images`.
    fn merge<C: LiveBrand>(self, team: &mut Team<C>, images: &[usize], labels: &[i32]) -> Ranked<Self> {
        let rows = self.starts.windows(2).map(|w| (w[1] - w[0]) as u64);
        let own = images.iter().zip(rows).flat_map(|(&image, rows)| [image as u64, rows]).collect();
        let (images, tokens, position) = (team.gather(own)?, team.gather(self.tokens)?, team.gather(self.position)?);
        // Image, rank, and its rows there.
        let mut places = Vec::new();
        for (rank, images) in images.iter().enumerate() {
            let mut start = 0;
            for &[image, rows] in images.as_chunks::<2>().0 {
                let end = start + rows as usize;
                places.push((image as usize, rank, start..end));
                start = end;
            }
        }
        places.sort_unstable_by_key(|(image, ..)| *image);
        let mut all = Self::default();
        for (image, rank, rows) in places {
            all.tokens.extend_from_slice(&tokens[rank][INPUTS * rows.start..INPUTS * rows.end]);
            all.position.extend_from_slice(&position[rank][2 * rows.start..2 * rows.end]);
            all.starts.push(all.position.len() / 2);
            all.labels.push(labels[image]);
        }
        Ok(all)
    }

    /// Packs some images into a batch. The memory of `packed` is used again.
    pub(crate) fn pack(&self, images: &[usize], packed: &mut Packed) {
        let Packed { tokens, position, cu_seqlens, labels } = packed;
        tokens.clear();
        position.clear();
        labels.clear();
        cu_seqlens.clear();
        cu_seqlens.push(0);
        for &image in images {
            let rows = self.starts[image]..self.starts[image + 1];
            tokens.extend_from_slice(&self.tokens[INPUTS * rows.start..INPUTS * rows.end]);
            position.extend_from_slice(&self.position[2 * rows.start..2 * rows.end]);
            cu_seqlens.push((position.len() / 2) as i32);
            labels.push(self.labels[image]);
        }
    }

    /// Returns a number that differs, in all likelihood, if anything of the data differs.
    pub(crate) fn fingerprint(&self) -> u64 {
        let bits = self.tokens.iter().chain(&self.position).map(|v| v.to_bits());
        let words = bits.chain(self.labels.iter().map(|&l| l as u32)).chain(self.starts.iter().map(|&s| s as u32));
        fnv(words)
    }
}

/// Makes the tokens of images. Each rank makes those of its share, and all ranks get those of all.
/// `choose` decides how, from height and width of the first images. An image that cannot be decoded
/// is passed to `fail` with its place, on the rank whose image it is, and left out. Also returns
/// how this rank decoded its images.
pub(super) fn tokenize<C: LiveBrand>(
    team: &mut Team<C>,
    device: Device,
    (listing, labels): (&Listing, &[i32]),
    decode: &DecodeArg,
    choose: impl FnOnce(&[Size]) -> Result<TokenParams, String>,
    bar: &ProgressBar,
    mut fail: impl FnMut(usize, &str),
) -> Ranked<(Tokens, TokenParams, Decoded)> {
    let own: Vec<usize> = (team.rank()..listing.paths.len()).step_by(team.size()).collect();
    let mut photos = Photos::open(device, own.iter().map(|&image| &listing.paths[image]), decode)?;
    let (mut choose, mut pipeline) = (Some(choose), None);
    // The images of this rank that could be decoded.
    let (mut images, mut tokens) = (Vec::new(), Tokens::default());
    loop {
        let chunk = photos.next_chunk(3)?;
        if let Some(chunk) = &chunk {
            bar.inc((chunk.failures.len() + chunk.inputs.len()) as u64);
            chunk.failures.iter().for_each(|(index, error)| fail(own[*index], error));
            if chunk.inputs.is_empty() {
                continue;
            }
        }
        let (pipeline, _) = match (&pipeline, choose.take()) {
            (None, Some(choose)) => {
                // All ranks come here once, also one that has no image.
                let sizes = chunk.as_ref().map(|chunk| chunk.pixels.sizes()).unwrap_or_default();
                let inputs = chunk.iter().flat_map(|chunk| &chunk.inputs).map(|&input| own[input]);
                let params = choose(&first(team, inputs.zip(sizes))?)?;
                pipeline.insert((Pipeline::new(device, params.clone())?, params))
            }
            (Some(pipeline), _) => pipeline,
            (None, None) => unreachable!("the parameters are chosen once, for the first pipeline"),
        };
        let Some(chunk) = chunk else { break };
        for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(pipeline)) {
            let image = own[index];
            tokens.add(&set.map_err(|e| format!("{}: {e}", listing.paths[image].display()))?, labels[image]);
            images.push(image);
        }
    }
    let all = match team.size() {
        1 => tokens,
        _ => tokens.merge(team, &images, labels)?,
    };
    match pipeline {
        Some((_, params)) => Ok((all, params, photos.decoded())),
        None => unreachable!("the loop makes a pipeline before it ends"),
    }
}

/// Returns height and width of the first images of all ranks: those that one rank alone would have
/// in its first chunk.
fn first<C: LiveBrand>(team: &mut Team<C>, own: impl Iterator<Item = (usize, Size)>) -> Ranked<Vec<Size>> {
    let own: Vec<u64> = own.flat_map(|(image, size)| [image as u64, size.height.into(), size.width.into()]).collect();
    let mut all = team.gather(own)?.concat().as_chunks::<3>().0.to_vec();
    all.sort_unstable();
    let (mut sizes, mut bytes) = (Vec::new(), 0);
    for [_, height, width] in all {
        if sizes.len() == CHUNK_IMAGES || bytes >= CHUNK_BYTES as u64 {
            break;
        }
        sizes.push(Size::new(height as u32, width as u32));
        bytes += 3 * height * width;
    }
    if sizes.is_empty() {
        return Err("none of the images can be decoded".to_owned().into());
    }
    Ok(sizes)
}

/// Puts places into a random order, which depends on the seed and the number of the draw only.
pub(crate) fn shuffle(places: &mut [usize], seed: u64, draw: u32) {
    for i in (1..places.len()).rev() {
        let [a, b, ..] = philox([i as u32, 0, draw, 0x7368_7566], [seed as u32, (seed >> 32) as u32]);
        let word = u64::from(a) | u64::from(b) << 32;
        places.swap(i, ((u128::from(word) * (i as u128 + 1)) >> 64) as usize);
    }
}

/// Divides images into those to learn from and those that are kept apart: a share of each class,
/// one at least if the class has two images.
pub(crate) fn split(labels: &[i32], share: f64, seed: u64) -> [Vec<usize>; 2] {
    let mut classes: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (image, &label) in labels.iter().enumerate() {
        classes.entry(label).or_default().push(image);
    }
    let (mut learn, mut apart) = (Vec::new(), Vec::new());
    for (class, mut images) in classes {
        shuffle(&mut images, seed, u32::MAX - class as u32);
        let most = images.len() - 1;
        let count = ((images.len() as f64 * share).round() as usize).max(1).min(most);
        apart.extend(images.drain(..count));
        learn.extend(images);
    }
    learn.sort_unstable();
    apart.sort_unstable();
    [learn, apart]
}

#[cfg(test)]
mod tests {
    use super::{shuffle, split};

    #[test]
    fn each_class_is_divided() {
        let labels: Vec<i32> = (0..100).map(|i| i % 3).chain([7, 8, 8]).collect();
        let [learn, apart] = split(&labels, 0.2, 5);
        let mut both = [&learn[..], &apart].concat();
        both.sort_unstable();
        assert_eq!(both, (0..103).collect::<Vec<_>>());
        let apart_of = |class| apart.iter().filter(|&&image| labels[image] == class).count();
        assert_eq!([0, 1, 2, 7, 8].map(apart_of), [7, 7, 7, 0, 1]);
        assert_eq!(split(&labels, 0.2, 5), [learn.clone(), apart]);
        assert_ne!(split(&labels, 0.2, 6)[0], learn);
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for draw in 0..6000 {
            let mut places = [0, 1, 2];
            shuffle(&mut places, 3, draw);
            *counts.entry(places).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}
