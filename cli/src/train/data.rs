//! A data set: its list of images, its tokens in a file, and the part that is kept apart.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use thalweg::{Device, LiveBrand, Size};
use thalweg_loader::{FolderContents, list_folder};
use thalweg_vision::augment::philox;
use thalweg_vision::{Pipeline, TokenParams, TokenSet};

use super::ranks::{Result as Ranked, Team};
use super::texts::{self, Question};
use super::tokenizer::Tokenizer;
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

/// Images with the names of their classes, or with questions.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) paths: Vec<PathBuf>,
    /// The class of each image.
    names: Vec<String>,
    /// The questions about the images, which have no classes then.
    pub(crate) questions: Vec<Question>,
}

impl Listing {
    /// Lists a folder with a folder for each class, or the images of a table, or those of a file of
    /// questions.
    pub(crate) fn read(data: &Path, tokenizer: &Tokenizer) -> Result<Self, String> {
        let wrong = |what: String| format!("{}: {what}", data.display());
        if texts::asks(data) {
            let (paths, questions) = texts::read(data, tokenizer)?;
            return Ok(Self { paths, names: Vec::new(), questions });
        }
        let mut found = Self { paths: Vec::new(), names: Vec::new(), questions: Vec::new() };
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

    /// Returns the class of each image as its place among `classes`. If there are questions, it is
    /// the place of the image in the list.
    pub(crate) fn labels(&self, classes: &[String]) -> Result<Vec<i32>, String> {
        if !self.questions.is_empty() {
            return Ok((0..self.paths.len() as i32).collect());
        }
        let place = |(name, path): (&String, &PathBuf)| match classes.binary_search(name) {
            Ok(place) => Ok(place as i32),
            Err(_) => Err(format!("{}: the model has no class {name:?}", path.display())),
        };
        self.names.iter().zip(&self.paths).map(place).collect()
    }
}

/// Returns a number of questions.
pub(super) fn hash_questions(questions: &[Question]) -> u64 {
    let words = |q: &Question| [q.image as i32, q.asked].into_iter().chain(q.ids.clone()).map(i32::cast_unsigned);
    fnv(questions.iter().flat_map(words))
}

/// Returns a number of a list of images: of the names of the classes, and of the class of each
/// image.
pub(super) fn hash(classes: &[String], labels: [&[i32]; 2]) -> u64 {
    let names = classes.iter().flat_map(|name| name.bytes().chain([0])).map(u32::from);
    let labels = labels.into_iter().flat_map(|labels| labels.iter().map(|&label| label as u32).chain([u32::MAX]));
    fnv(names.chain(labels))
}

fn fnv(words: impl Iterator<Item = u32>) -> u64 {
    fnv_on(0xcbf2_9ce4_8422_2325, words)
}

/// Goes on with a number that [`fnv`] has begun.
fn fnv_on(hash: u64, words: impl Iterator<Item = u32>) -> u64 {
    words.fold(hash, |hash, word| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3))
}

/// Lists a folder that can be read.
fn list(folder: &Path, recursive: bool) -> Result<FolderContents, String> {
    let found = list_folder(folder, &EXTENSIONS, recursive);
    match found.unreadable.first() {
        Some(folder) => Err(format!("{}: {}", folder.path.display(), cannot_read(folder))),
        None => Ok(found),
    }
}

/// The tokens of images, in a file, so that a data set may be larger than the memory of the host.
///
/// For each image it has the numbers of its tokens, and then their coordinates. The file has no
/// name, so it is gone when the process ends, however that happens. What was read or written
/// lately is in the page cache of the system, so small data sets cost no access to the disk.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    file: Arc<File>,
    /// For each image: the tokens before it in the file, and its own.
    places: Vec<[usize; 2]>,
    pub(crate) labels: Vec<i32>,
    /// The question about each image, or none. An image is there once for each question.
    pub(super) questions: Vec<Question>,
}

/// The numbers of a token with its coordinates.
const ROW: usize = INPUTS + 2;

/// A batch in the form that a model takes.
#[derive(Debug)]
pub(crate) struct Packed {
    tokens: Vec<f32>,
    position: Vec<f32>,
    cu_seqlens: Vec<i32>,
    labels: Vec<i32>,
    ids: Vec<i32>,
    text_cu_seqlens: Vec<i32>,
    question: Vec<i32>,
}

impl Default for Packed {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            position: Vec::new(),
            cu_seqlens: vec![0],
            labels: Vec::new(),
            ids: Vec::new(),
            text_cu_seqlens: vec![0],
            question: Vec::new(),
        }
    }
}

impl Packed {
    pub(crate) fn batch(&self) -> thalweg_train::TokenBatch<'_> {
        let Self { tokens, position, cu_seqlens, labels, .. } = self;
        thalweg_train::TokenBatch { tokens, position, cu_seqlens, labels }
    }

    /// Returns the images with their questions, if they have any.
    pub(super) fn texts(&self) -> Option<thalweg_train::TextBatch<'_>> {
        let Self { tokens, position, cu_seqlens, ids, text_cu_seqlens, question, .. } = self;
        let batch = thalweg_train::TextBatch { tokens, position, cu_seqlens, ids, text_cu_seqlens, question };
        (!ids.is_empty()).then_some(batch)
    }

    /// Adds an image without a class.
    pub(crate) fn add(&mut self, set: &TokenSet) {
        self.tokens.extend(&set.tokens);
        self.position.extend(&set.position);
        self.end(0);
    }

    fn end(&mut self, label: i32) {
        self.cu_seqlens.push((self.position.len() / 2) as i32);
        self.labels.push(label);
    }
}

impl Tokens {
    /// Returns the number of images.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of tokens.
    pub(crate) fn rows(&self) -> usize {
        self.places.iter().map(|[_, rows]| rows).sum()
    }

    /// Returns some of the images.
    pub(crate) fn part(&self, images: &[usize]) -> Self {
        let places = images.iter().map(|&image| self.places[image]).collect();
        let labels = images.iter().map(|&image| self.labels[image]).collect();
        Self { file: self.file.clone(), places, labels, questions: Vec::new() }
    }

    /// Returns an image for each question about one of these, whose labels are places in the list
    /// of images.
    pub(super) fn asked(self, questions: &[Question]) -> Self {
        if questions.is_empty() {
            return self;
        }
        let places: BTreeMap<i32, [usize; 2]> = self.labels.into_iter().zip(self.places).collect();
        let place = |q: &Question| places.get(&(q.image as i32)).copied();
        let questions: Vec<_> = questions.iter().filter(|q| place(q).is_some()).cloned().collect();
        let labels = questions.iter().map(|q| q.image as i32).collect();
        Self { places: questions.iter().filter_map(place).collect(), labels, questions, ..self }
    }

    /// Returns the number of losses of some of the images: one each, or one for each id that
    /// answers.
    pub(super) fn losses(&self, images: &[usize]) -> usize {
        let answers = |q: &Question| q.ids.len() - q.asked as usize;
        images.iter().map(|&image| self.questions.get(image).map_or(1, answers)).sum()
    }

    /// Packs some images into a batch. The memory of `packed` is used again.
    pub(crate) fn pack(&self, images: &[usize], packed: &mut Packed) -> Result<(), String> {
        packed.tokens.clear();
        packed.position.clear();
        packed.labels.clear();
        packed.cu_seqlens.truncate(1);
        packed.ids.clear();
        packed.text_cu_seqlens.truncate(1);
        packed.question.clear();
        for &image in images {
            self.read(image, &mut packed.tokens, &mut packed.position)?;
            packed.end(self.labels[image]);
            if let Some(question) = self.questions.get(image) {
                packed.ids.extend(&question.ids);
                packed.text_cu_seqlens.push(packed.ids.len() as i32);
                packed.question.push(question.asked);
            }
        }
        Ok(())
    }

    /// Adds an image to what the vectors have.
    fn read(&self, image: usize, tokens: &mut Vec<f32>, position: &mut Vec<f32>) -> Result<(), String> {
        let [_, rows] = self.places[image];
        let mut file = self.seek(image)?;
        for (numbers, more) in [(tokens, INPUTS * rows), (position, 2 * rows)] {
            let before = numbers.len();
            numbers.resize(before + more, 0.0);
            file.read_exact(bytemuck::cast_slice_mut(&mut numbers[before..])).map_err(|e| unreadable(&e))?;
        }
        Ok(())
    }

    /// Returns the file, which the next access finds at the beginning of an image.
    fn seek(&self, image: usize) -> Result<&File, String> {
        let start = self.places[image][0] * ROW * size_of::<f32>();
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(start as u64)).map_err(|e| unreadable(&e))?;
        Ok(file)
    }

    /// Calls a function with tokens and coordinates of each image, in order. If it returns `true`,
    /// what it made of them is written back.
    pub(crate) fn each(&self, mut visit: impl FnMut(&mut [f32], &mut [f32]) -> bool) -> Result<(), String> {
        let (mut tokens, mut position) = (Vec::new(), Vec::new());
        for image in 0..self.len() {
            tokens.clear();
            position.clear();
            self.read(image, &mut tokens, &mut position)?;
            if visit(&mut tokens, &mut position) {
                let mut file = self.seek(image)?;
                let mut write = |numbers: &[f32]| file.write_all(bytemuck::cast_slice(numbers));
                write(&tokens).and_then(|()| write(&position)).map_err(|e| unwritable(&e))?;
            }
        }
        Ok(())
    }

    /// Returns a number that differs, in all likelihood, if anything of the data differs.
    pub(crate) fn fingerprint(&self) -> Result<u64, String> {
        let rows = self.places.iter().map(|&[_, rows]| rows as u32);
        let mut hash = fnv(rows.chain(self.labels.iter().map(|&label| label as u32)));
        self.each(|tokens, position| {
            hash = fnv_on(hash, tokens.iter().chain(&*position).map(|v| v.to_bits()));
            false
        })?;
        Ok(hash)
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot read the file of tokens: {error}")
}

fn unwritable(error: &io::Error) -> String {
    format!("cannot write the file of tokens: {error}; --scratch names a folder with more room")
}

/// Makes the tokens of images. Each rank makes those of its share, and all ranks write those of all
/// into a file in `folder`. Of that many images at a time as a chunk has, the tokens are in memory.
/// `choose` decides how, from height and width of the first images. An image that cannot be decoded
/// is passed to `fail` with its place, on the rank whose image it is, and left out. Also returns
/// how this rank decoded its images.
pub(super) fn tokenize<C: LiveBrand>(
    team: &mut Team<C>,
    (device, folder): (Device, &Path),
    (listing, labels): (&Listing, &[i32]),
    decode: &DecodeArg,
    choose: impl FnOnce(&[Size]) -> Result<TokenParams, String>,
    bar: &ProgressBar,
    mut fail: impl FnMut(usize, &str),
) -> Ranked<(Tokens, TokenParams, Decoded)> {
    let mut file = tempfile::tempfile_in(folder)
        .map_err(|e| format!("cannot keep the tokens in {}: {e}; --scratch names another folder", folder.display()))?;
    let own: Vec<usize> = (team.rank()..listing.paths.len()).step_by(team.size()).collect();
    let mut photos = Photos::open(device, own.iter().map(|&image| &listing.paths[image]), decode)?;
    let (mut choose, mut pipeline) = (Some(choose), None);
    // Each image with its place in the file.
    let (mut images, mut rows) = (Vec::new(), 0);
    let params = loop {
        let chunk = photos.next_chunk(3)?;
        if let Some(chunk) = &chunk {
            bar.inc((chunk.failures.len() + chunk.inputs.len()) as u64);
            chunk.failures.iter().for_each(|(index, error)| fail(own[*index], error));
            if chunk.inputs.is_empty() {
                continue;
            }
        }
        let (pipeline, params) = match (&pipeline, choose.take()) {
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
        let (mut heads, mut numbers) = (Vec::new(), Vec::new());
        if let Some(chunk) = chunk {
            for (&index, set) in chunk.inputs.iter().zip(chunk.pixels.tokens(pipeline)) {
                let image = own[index];
                let set = set.map_err(|e| format!("{}: {e}", listing.paths[image].display()))?;
                heads.extend([image as u64, set.position.len() as u64 / 2]);
                numbers.extend(set.tokens.iter().chain(&set.position));
            }
        }
        // A rank without a chunk has no images left, and takes part until nobody has.
        let heads = team.gather(heads)?.concat();
        if heads.is_empty() {
            break params.clone();
        }
        for numbers in team.gather(numbers)? {
            file.write_all(bytemuck::cast_slice::<f32, u8>(&numbers)).map_err(|e| unwritable(&e))?;
        }
        for &[image, own] in heads.as_chunks::<2>().0 {
            images.push((image as usize, [rows, own as usize]));
            rows += own as usize;
        }
    };
    images.sort_unstable();
    let labels = images.iter().map(|&(image, _)| labels[image]).collect();
    let places = images.into_iter().map(|(_, place)| place).collect();
    Ok((Tokens { file: Arc::new(file), places, labels, questions: Vec::new() }, params, photos.decoded()))
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
