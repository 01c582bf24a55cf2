//! A server: image files in memory become tokens. Several clients send requests; answers come in
//! the order of the requests, and a broken file is an error of its own request.
//!
//! ```text
//! clients          | requests, a few at most: a client that is too fast waits
//! decode threads   | decode 0 | decode 2 |      into page-locked memory, as much as the budget allows
//!                      | decode 1 | decode 3 |
//! this thread               | submit 0 | submit 1 | ...
//! device                      | tokens 0 | tokens 1 |
//! another thread                         | answer 0 | answer 1 |
//! ```
//!
//! The server ends when no client is left, and each request that was sent has its answer then. So
//! for a clean end after Ctrl-C, let the clients end.
//!
//! ```text
//! cargo run --release --example requests
//! ```

#[path = "support/mod.rs"]
mod support;

use std::io::Cursor;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::Instant;

use image::{ImageFormat, RgbImage};
use thalweg::{Device, Event};
use thalweg_loader::{Batch, Error, Loader, LoaderOptions, Sample, Source, UploadMode, decode_photo};
use thalweg_vision::{Pipeline, TokenParams, TokenSet, Tokens};

const CLIENTS: usize = 4;
/// The requests of a client.
const REQUESTS: usize = 12;
/// The requests that wait to be decoded, and the bytes of pixels under way.
const WAITING: usize = 4;
const PIXELS: usize = 64 << 20;

type Answer = Result<TokenSet, Error>;

struct Request {
    name: String,
    /// A PNG, a JPEG or a WebP.
    file: Vec<u8>,
    answer: Sender<Answer>,
}

/// Answers requests until no client is left.
fn serve(device: Device, requests: Receiver<Request>) -> Result<(), Error> {
    let pipeline = Pipeline::new(device, TokenParams::default().with_budget(500))?;
    // The loader gives one result for each sample, in order. What belongs to the samples goes
    // beside it, in the same order, because a sample that fails has no metadata.
    let (beside, answers) = mpsc::channel();
    let source = Source::from_fn(move |_| {
        let Request { name, file, answer } = requests.recv().ok()?; // waits; `None` ends the loader
        beside.send(answer).ok()?;
        Some(Sample::new(name, (), move |sink| decode_photo(&file, sink)))
    });
    // Batches of one image, so that none waits for others to come. `Off`: the pixels go into a
    // frame of the pipeline.
    let options = LoaderOptions::default().with_batch_size(1).with_upload(UploadMode::Off).with_pinned_budget(PIXELS);
    let loader = Loader::new(device, source, options)?;

    let (submitted, under_way) = mpsc::sync_channel::<(Sender<Answer>, Result<Event<Tokens>, Error>)>(pipeline.depth());
    thread::scope(|scope| {
        scope.spawn(|| {
            for (answer, tokens) in under_way {
                let set = tokens.and_then(|tokens| {
                    let tokens = tokens.synchronize()?;
                    let set = tokens.set(0);
                    pipeline.recycle(tokens);
                    Ok(set)
                });
                let _ = answer.send(set); // the client may be gone
            }
        });
        for batch in loader {
            let tokens = match batch {
                Ok(batch) => submit(&pipeline, &batch.synchronize()?),
                Err(error @ Error::Sample { .. }) => Err(error),
                Err(error) => return Err(error), // the device or a thread has failed
            };
            let answer = answers.recv().expect("there is one for each sample");
            submitted.send((answer, tokens)).expect("the other thread runs as long as this one");
        }
        drop(submitted); // ends the other thread
        Ok(())
    })
}

/// Copies an image to a frame, once there is a free one, and enqueues its work.
fn submit(pipeline: &Pipeline, batch: &Batch<()>) -> Result<Event<Tokens>, Error> {
    let mut frame = pipeline.frame(&batch.sizes)?;
    frame.image_mut(0).copy_from_slice(batch.pixels(0));
    Ok(pipeline.submit(frame)?)
}

/// Returns the request of a client, and the expected answer: tokens, or an error with these words.
fn file(kind: usize) -> (Vec<u8>, Result<(), &'static str>) {
    let encode = |width, height, format| {
        let image = RgbImage::from_fn(width, height, |x, y| [x, y, x * y / 64].map(|v| v as u8).into());
        let mut file = Cursor::new(Vec::new());
        image.write_to(&mut file, format).expect("memory takes every byte");
        file.into_inner()
    };
    let photo = encode(320, 200, ImageFormat::Jpeg);
    match kind % 6 {
        0 => (photo[..photo.len() / 2].to_vec(), Err("truncated")),
        1 => (Vec::new(), Err("the file is empty")),
        2 => (b"hello".to_vec(), Err("not an image")),
        3 => (encode(1, 1, ImageFormat::Png), Ok(())),
        _ => (photo, Ok(())),
    }
}

/// Sends requests and checks the answers. Returns how many are tokens.
fn client(number: usize, requests: &SyncSender<Request>) -> usize {
    let (answer, answers) = mpsc::channel();
    let mut expected = Vec::new();
    for i in 0..REQUESTS {
        let (file, outcome) = file(number + i);
        expected.push(outcome);
        let request = Request { name: format!("{i} of client {number}"), file, answer: answer.clone() };
        requests.send(request).expect("the server runs"); // waits if the server has enough to do
    }
    drop(answer);
    let answers: Vec<Answer> = answers.iter().collect();
    assert_eq!(answers.len(), REQUESTS, "no answer is lost");
    for (i, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
        match (answer, expected) {
            (Ok(set), Ok(())) => assert!(!set.is_empty()),
            (Err(error), Err(words)) => {
                let error = error.to_string();
                assert!(error.contains(&format!("{i} of client {number}")) && error.contains(words), "{error}");
            }
            _ => panic!(
                "request {i} of client {number}: {:?}, expected {expected:?}",
                answer.as_ref().map(TokenSet::len)
            ),
        }
    }
    answers.iter().filter(|answer| answer.is_ok()).count()
}

fn main() -> Result<(), Error> {
    let device = support::device("A server: image files in memory become tokens.")?;
    let (send, requests) = mpsc::sync_channel(WAITING);
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let send = send.clone();
            thread::spawn(move || client(number, &send))
        })
        .collect();
    drop(send);
    serve(device, requests)?;
    let tokens: usize = clients.into_iter().map(|client| client.join().expect("a client checks its answers")).sum();
    println!(
        "{CLIENTS} clients, {} requests on {}: {tokens} with tokens, {} with an error; {:.1} ms",
        CLIENTS * REQUESTS,
        device.name(),
        CLIENTS * REQUESTS - tokens,
        start.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
