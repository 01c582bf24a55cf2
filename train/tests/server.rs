//! Many texts at once: each is the text that the request has alone, whoever joins, leaves or is
//! canceled beside it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use testkit::devices::everywhere;
use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, DeviceSlice, LiveBrand, Stream};
use thalweg_train::{
    Error, Precision, Result, Tensors, TextDecoder, TextRequest, TextServer, TextServerOptions, TextTicket,
    VisionLanguageConfig,
};

use crate::support::Random;

const PLACES: usize = 20;
/// The seed of a request whose image is no number.
const NO_NUMBER: u64 = u64::MAX;

fn model([heads, size]: [usize; 2]) -> (VisionLanguageConfig, Tensors) {
    let config = VisionLanguageConfig::default()
        .with_input_dim(2)
        .with_embed_dim(4)
        .with_num_heads(1)
        .with_depth(0)
        .with_text_embed_dim(heads * size)
        .with_text_num_heads(heads)
        .with_text_depth(2)
        .with_vocab_size(30)
        .with_max_tokens(PLACES);
    (config, config.init(5).unwrap())
}

/// A request and the rows of its image.
struct Asked {
    request: TextRequest,
    image: Vec<f32>,
}

/// Draws a request: some without temperature, and some that need several pages.
fn asked(number: u64, width: usize, most: usize) -> Asked {
    let mut random = Random(number);
    let (rows, prompt, count) = (1 + random.below(40), 1 + random.below(5), 1 + random.below(most));
    let request = TextRequest::default()
        .with_rows(rows)
        .with_prompt((0..prompt).map(|_| random.below(30) as i32).collect())
        .with_count(count)
        .with_temperature([0.0, 0.8, 1.5][random.below(3)])
        .with_top_p([1.0, 0.9, 0.4][random.below(3)])
        .with_seed(random.word());
    Asked { request, image: random.numbers(rows * width) }
}

fn options() -> TextServerOptions {
    TextServerOptions::default().with_texts(5).with_pages(12).with_image_rows(40)
}

fn write_image<S: LiveBrand>(s: &Stream<S>, image: &[f32], to: &mut DeviceSlice<S, f32>) -> Result<()> {
    let host = s.bind(s.device().pinned_from(image)?).map_err(thalweg::Error::from)?;
    Ok(s.copy_to_device(&host, to)?)
}

fn number(tickets: &[TextTicket], ticket: TextTicket) -> usize {
    tickets.iter().position(|of| *of == ticket).unwrap()
}

/// Serves requests, all at once. The image of each has rows of a number that its seed gives.
/// `before` is called before each step, with the number of the step. Returns the texts, and the
/// number of steps for which there was no page-locked memory.
fn serve_all<S: LiveBrand, E: Precision>(
    server: &mut TextServer<S, E>,
    requests: &[TextRequest],
    mut before: impl FnMut(usize, &TextServer<S, E>),
) -> (Vec<Vec<i32>>, usize) {
    let (s, pages) = (server.stream(), server.free_pages());
    let tickets: Vec<_> = requests.iter().map(|request| server.submit(request.clone()).unwrap()).collect();
    let mut texts = vec![None; requests.len()];
    let (mut steps, mut failed, mut newest) = (0, 0, None);
    while !server.is_idle() {
        assert!(steps < 1000, "the texts do not end: {texts:?}");
        before(steps, server);
        let image = |seed: u64| if seed == NO_NUMBER { f32::NAN } else { (seed % 7) as f32 - 2.5 };
        let stepped = server.step(|ticket, to| {
            assert!(newest.replace(ticket) <= Some(ticket), "requests join in their order");
            Ok(s.fill(to, image(requests[number(&tickets, ticket)].seed))?)
        });
        match stepped {
            Err(Error::Device(thalweg::Error::PinnedBudget { .. })) => failed += 1,
            stepped => stepped.unwrap(),
        }
        while let Some((ticket, text)) = server.finished() {
            assert!(texts[number(&tickets, ticket)].replace(text.unwrap()).is_none());
        }
        let ended = texts.iter().flatten().count();
        assert_eq!(server.waiting() + server.running() + ended, requests.len(), "no request is lost");
        steps += 1;
    }
    assert_eq!(server.free_pages(), pages, "all pages are free again");
    (texts.into_iter().map(Option::unwrap).collect(), failed)
}

/// Serves requests as a random schedule submits and cancels them. Returns the texts of those that
/// were not canceled.
fn serve<S: LiveBrand, E: Precision>(
    server: &mut TextServer<S, E>,
    all: &[Asked],
    mut schedule: Random,
    at_once: usize,
) -> Vec<Option<Vec<i32>>> {
    let (s, pages) = (server.stream(), server.free_pages());
    let mut tickets: Vec<TextTicket> = Vec::new();
    let mut texts: Vec<Option<Vec<i32>>> = all.iter().map(|_| None).collect();
    let (mut most, mut canceled) = (0, Vec::new());
    while tickets.len() < all.len() || !server.is_idle() {
        if at_once > 1 || server.is_idle() {
            for _ in 0..schedule.below(at_once + 1) {
                if let Some(next) = all.get(tickets.len()) {
                    tickets.push(server.submit(next.request.clone()).unwrap());
                }
            }
            if at_once > 1 && !tickets.is_empty() && schedule.below(8) == 0 {
                let ticket = tickets[schedule.below(tickets.len())];
                let goes_on = texts[number(&tickets, ticket)].is_none() && !canceled.contains(&ticket);
                assert_eq!(server.cancel(ticket).unwrap(), goes_on);
                assert!(!server.cancel(ticket).unwrap(), "it has ended");
                canceled.extend(goes_on.then_some(ticket));
            }
        }
        server.step(|ticket, to| write_image(&s, &all[number(&tickets, ticket)].image, to)).unwrap();
        most = most.max(server.running());
        while let Some((ticket, text)) = server.finished() {
            assert!(!canceled.contains(&ticket), "a canceled request has no text");
            assert!(texts[number(&tickets, ticket)].replace(text.unwrap()).is_none());
        }
    }
    assert_eq!(texts.iter().flatten().count() + canceled.len(), all.len(), "each of the others has its text");
    assert_eq!(server.free_pages(), pages, "all pages are free again");
    assert_eq!(most > 1, at_once > 1, "{most} texts at once");
    texts
}

fn texts_are_those_of_each_alone<E: Precision>(shape: [usize; 2]) {
    let (config, file) = model(shape);
    let all: Vec<_> = (0..9).map(|n| asked(n, config.text_embed_dim, 8)).collect();
    everywhere(|device| {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut server = TextServer::<_, E>::from_tensors(s, &file, options()).unwrap();
            let alone = serve(&mut server, &all, Random(0), 1);
            for (asked, text) in all.iter().zip(&alone) {
                let (text, count) = (text.as_ref().unwrap(), asked.request.count);
                assert!(text.len() == count || text.len() < count && text.ends_with(&[0]), "{text:?} of {count}");
                assert!(!text[..text.len() - 1].contains(&0), "{text:?}: a text ends at the first 0");
            }
            assert!(alone.iter().any(|text| *text != alone[0]));
            for seed in 1..4 {
                // The same server again, whose slots and pages have been used, and a new one
                // without graphs.
                if seed == 3 {
                    server = TextServer::from_tensors(s, &file, options()).unwrap();
                    server.set_graphs(false);
                }
                let texts = serve(&mut server, &all, Random(seed), 3);
                assert!(texts.iter().flatten().count() >= 4, "{device}: most requests are not canceled");
                for (n, (text, alone)) in texts.iter().zip(&alone).enumerate().filter(|(_, (text, _))| text.is_some()) {
                    assert_eq!(text, alone, "{device}: request {n} by schedule {seed}");
                }
            }
        });
    });
}

#[test]
fn texts_in_f32_are_those_of_each_alone() {
    texts_are_those_of_each_alone::<f32>([3, 5]);
}

#[test]
fn texts_in_bf16_are_those_of_each_alone() {
    texts_are_those_of_each_alone::<bf16>([1, 64]);
}

/// Without temperature, a text is that of the decoder for one text: other kernels, and the same
/// model.
#[test]
fn texts_without_temperature_are_those_of_the_decoder() {
    let (config, file) = model([2, 16]);
    everywhere(|device| {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut server = TextServer::<_, f32>::from_tensors(s, &file, options()).unwrap();
            let mut decoder = TextDecoder::<_, f32>::from_tensors(s, &file).unwrap();
            let all: Vec<_> = (0..4).map(|n| asked(20 + n, config.text_embed_dim, PLACES - 5)).collect();
            let all: Vec<_> = all
                .into_iter()
                .map(|a| Asked { request: a.request.with_temperature(0.0).with_stop(vec![]), ..a })
                .collect();
            let texts = serve(&mut server, &all, Random(1), 1);
            for (Asked { request, image }, text) in all.iter().zip(texts) {
                let (image, mut ids) = (s.upload_blocking(image).unwrap(), s.alloc(request.count).unwrap());
                decoder.generate(&image, &request.prompt, &mut ids).unwrap();
                assert_eq!(s.read_blocking(&ids).unwrap(), text.unwrap(), "{device}");
            }
        });
    });
}

/// Serves requests until all have ended, some of them canceled, and compares what is left.
fn nothing_leaks(requests: u64, device: Device) {
    let (config, file) = model([2, 8]);
    AnyStream::new(device).unwrap().enter(|s| {
        let mut server = TextServer::<_, bf16>::from_tensors(s, &file, options()).unwrap();
        let some = |from: u64, to: u64| -> Vec<_> { (from..to).map(|n| asked(n, config.text_embed_dim, 3)).collect() };
        serve(&mut server, &some(0, 20), Random(0), 4);
        s.synchronize().unwrap();
        let before = device.memory_stats().unwrap();
        for from in (20..requests).step_by(100) {
            serve(&mut server, &some(from, requests.min(from + 100)), Random(from), 4);
        }
        s.synchronize().unwrap();
        let after = device.memory_stats().unwrap();
        assert_eq!((after.in_use, after.allocations), (before.in_use, before.allocations), "{device}");
        assert_eq!((server.free_pages(), server.waiting(), server.running()), (12, 0, 0));
    });
}

#[test]
fn many_requests_leave_and_allocate_nothing() {
    nothing_leaks(200, Device::new_cpu().unwrap());
}

/// `cargo test --release -p thalweg-train --test main ten_thousand -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_requests_leave_and_allocate_nothing() {
    everywhere(|device| nothing_leaks(10_000, device));
}

#[test]
fn a_broken_request_is_its_own_error() {
    let (config, file) = model([1, 8]);
    AnyStream::new(Device::cpu().unwrap()).unwrap().enter(|s| {
        let mut server = TextServer::<_, f32>::from_tensors(s, &file, options().with_pages(3)).unwrap();
        let good = TextRequest::default().with_rows(3).with_prompt(vec![4, 2]).with_count(6).with_stop(vec![]);
        let numbers = Random(1).numbers(3 * config.text_embed_dim);
        let first = server.submit(good.clone()).unwrap();
        let fails = |server: &mut TextServer<_, f32>, request: TextRequest, why: &str| {
            let error = server.submit(request).unwrap_err();
            assert!(matches!(error, Error::Batch(_)) && error.to_string().contains(why), "{error}");
        };
        fails(&mut server, good.clone().with_prompt(vec![]), "a token at least");
        fails(&mut server, good.clone().with_prompt(vec![30]), "the id 30");
        fails(&mut server, good.clone().with_prompt(vec![-1]), "the id -1");
        fails(&mut server, good.clone().with_count(PLACES), "over 20 places");
        fails(&mut server, good.clone().with_prompt(vec![4; PLACES + 1]).with_count(0), "over 20 places");
        fails(&mut server, good.clone().with_rows(0), "1 to 40 rows, and not 0");
        fails(&mut server, good.clone().with_rows(41), "1 to 40 rows");
        fails(&mut server, good.clone().with_rows(40).with_count(10), "needs 4 pages, and the cache has 3");
        fails(&mut server, good.clone().with_temperature(f32::NAN), "temperature NaN");
        fails(&mut server, good.clone().with_top_p(1.5), "part 1.5");
        let broken = server.submit(good.clone()).unwrap();
        let (none, last) = (server.submit(good.clone().with_count(0)).unwrap(), server.submit(good).unwrap());
        let mut ended = Vec::new();
        while !server.is_idle() {
            server
                .step(|ticket, to| {
                    if ticket == broken {
                        return Err(Error::Batch("a broken image".into()));
                    }
                    write_image(s, &numbers, to)
                })
                .unwrap();
            ended.extend(std::iter::from_fn(|| server.finished()));
        }
        ended.sort_by_key(|(ticket, _)| *ticket);
        let [(a, text), (b, error), (c, empty), (d, same)] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!([*a, *b, *c, *d], [first, broken, none, last]);
        assert!(error.as_ref().unwrap_err().to_string().contains("a broken image"));
        assert!(empty.as_ref().unwrap().is_empty());
        assert_eq!((text.as_ref().unwrap().len(), text.as_ref().unwrap()), (6, same.as_ref().unwrap()));
        let rows = |rows| options().with_image_rows(rows);
        for options in [options().with_texts(0), options().with_texts(129), options().with_pages(0), rows(0)] {
            assert!(matches!(TextServer::<_, f32>::from_tensors(s, &file, options), Err(Error::Config(_))));
        }
        // The kernels cannot number the keys of so many pages.
        let many = options().with_pages(100_000_000);
        for options in [rows(usize::MAX), rows(i32::MAX as usize + 1 - PLACES), many] {
            assert!(matches!(TextServer::<_, f32>::from_tensors(s, &file, options), Err(Error::Config(_))));
        }
    });
}

#[test]
fn a_decoder_without_blocks_writes_texts() {
    let config = model([2, 4]).0.with_text_depth(0);
    let file = config.init(5).unwrap();
    AnyStream::new(Device::cpu().unwrap()).unwrap().enter(|s| {
        let mut server = TextServer::<_, f32>::from_tensors(s, &file, options()).unwrap();
        let requests: Vec<_> = (0..3).map(|n| asked(n, 8, 6).request.with_count(4).with_stop(vec![])).collect();
        let (texts, _) = serve_all(&mut server, &requests, |_, _| {});
        assert!(texts.iter().all(|text| text.len() == 4), "{texts:?}");
    });
}

/// A closure that panics has not ended its request: a later step calls it again.
#[test]
fn a_panic_loses_no_request() {
    let (_, file) = model([1, 8]);
    AnyStream::new(Device::cpu().unwrap()).unwrap().enter(|s| {
        let mut server = TextServer::<_, f32>::from_tensors(s, &file, options()).unwrap();
        let request = TextRequest::default().with_rows(3).with_prompt(vec![4, 2]).with_count(6).with_stop(vec![]);
        let ticket = server.submit(request.clone()).unwrap();
        let panics = catch_unwind(AssertUnwindSafe(|| server.step(|_, _| panic!("a panic of this test"))));
        assert!(panics.is_err() && (server.waiting(), server.free_pages()) == (1, 12));
        let again = server.submit(request).unwrap();
        let mut called = Vec::new();
        while !server.is_idle() {
            server
                .step(|ticket, to| {
                    called.push(ticket);
                    Ok(s.fill(to, 0.5)?)
                })
                .unwrap();
        }
        let texts = [server.finished().unwrap(), server.finished().unwrap()];
        assert_eq!((called, texts.each_ref().map(|(of, _)| *of)), (vec![ticket, again], [ticket, again]));
        assert_eq!(texts[0].1.as_ref().unwrap(), texts[1].1.as_ref().unwrap());
    });
}

/// A request that needs all of the cache has its turn, and those behind it wait for it.
#[test]
fn a_full_cache_makes_requests_wait_in_their_order() {
    let (config, file) = model([1, 8]);
    AnyStream::new(Device::cpu().unwrap()).unwrap().enter(|s| {
        let mut server = TextServer::<_, f32>::from_tensors(s, &file, options().with_pages(4)).unwrap();
        let of =
            |rows: usize| TextRequest::default().with_rows(rows).with_prompt(vec![1]).with_count(4).with_stop(vec![]);
        let rows = [12, 40, 12, 28, 20];
        let tickets = rows.map(|rows| server.submit(of(rows).with_count(if rows == 40 { 10 } else { 4 })).unwrap());
        let mut joined = Vec::new();
        while !server.is_idle() {
            server
                .step(|ticket, to| {
                    joined.push(ticket);
                    let numbers = Random(2).numbers(to.len());
                    write_image(s, &numbers[..to.len().min(40 * config.text_embed_dim)], to)
                })
                .unwrap();
            assert!(
                server.running() <= if joined.len() == 2 { 1 } else { 3 },
                "the large text has the cache to itself"
            );
        }
        assert_eq!(joined, tickets);
        let texts: Vec<_> = std::iter::from_fn(|| server.finished()).map(|(_, text)| text.unwrap().len()).collect();
        assert_eq!((texts.len(), texts.iter().sum::<usize>()), (5, 26));
    });
}

/// More texts than the fewest rows of a token: they are written 64 rows at a time, then 32 and 16.
fn forty_texts_at_once<E: Precision>() {
    let (_, file) = model([1, 16]);
    let request = |n: u64| {
        let request = TextRequest::default().with_rows(1 + n as usize % 3).with_prompt(vec![n as i32 % 30]);
        // Those of the last slots end first, but for one of them.
        request
            .with_count(if n == 20 { 8 } else { 10 - n as usize / 4 })
            .with_temperature(1.0)
            .with_seed(n)
            .with_stop(vec![])
    };
    let requests: Vec<_> = (0..40).map(request).collect();
    everywhere(|device| {
        AnyStream::new(device).unwrap().enter(|s| {
            let options = options().with_texts(40).with_pages(40);
            let mut server = TextServer::<_, E>::from_tensors(s, &file, options).unwrap();
            let mut counts = Vec::new();
            let (texts, _) = serve_all(&mut server, &requests, |_, server| counts.push(server.running()));
            for wanted in [17..=32, 1..=16] {
                assert!(counts.iter().any(|count| wanted.contains(count)), "{counts:?}");
            }
            assert_eq!(counts.iter().max(), Some(&40));
            for (n, text) in texts.iter().enumerate() {
                let (alone, _) = serve_all(&mut server, &requests[n..=n], |_, _| ());
                assert_eq!(*text, alone[0], "{device}: text {n}");
            }
        });
    });
}

#[test]
fn forty_texts_in_f32_are_those_of_each_alone() {
    forty_texts_at_once::<f32>();
}

#[test]
fn forty_texts_in_bf16_are_those_of_each_alone() {
    forty_texts_at_once::<bf16>();
}

#[test]
fn a_request_says_how_its_text_is_drawn_and_ends() {
    let (_, file) = model([2, 8]);
    let greedy = TextRequest::default().with_rows(2).with_prompt(vec![7]).with_count(15).with_stop(vec![]);
    let drawn = greedy.clone().with_temperature(1.5);
    everywhere(|device| {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut server = TextServer::<_, f32>::from_tensors(s, &file, options()).unwrap();
            // Seeds 7 apart have the same image.
            let requests = [
                greedy.clone(),
                drawn.clone().with_top_p(0.0).with_seed(7),
                drawn.clone().with_seed(7),
                drawn.clone().with_seed(14),
                drawn.clone().with_seed(7 + (7 << 32)),
            ];
            let (texts, _) = serve_all(&mut server, &requests, |_, _| ());
            assert_eq!(texts[0], texts[1], "{device}: the most probable ids");
            let mut different = texts[1..].to_vec();
            different.sort();
            different.dedup();
            assert_eq!(different.len(), 4, "{device}: {texts:?}");
            for text in &texts {
                assert_eq!(text.len(), 15);
            }
            // An id that comes late ends the text there.
            let text = &texts[2];
            let first = |id: &i32| text.iter().position(|of| of == id).unwrap();
            let stop = text.iter().copied().filter(|&id| id != 0).max_by_key(|id| first(id)).unwrap();
            let (cut, _) = serve_all(&mut server, &[drawn.clone().with_seed(7).with_stop(vec![-1, stop])], |_, _| ());
            assert!(cut[0] == text[..=first(&stop)] && first(&stop) > 0, "{device}: {cut:?} of {text:?}");
            // An image that is no number gives ids that are some.
            let broken = [greedy.clone().with_seed(NO_NUMBER), drawn.clone().with_seed(NO_NUMBER)];
            for id in serve_all(&mut server, &broken, |_, _| ()).0.iter().flatten() {
                assert!((0..30).contains(id), "{device}: {id}");
            }
        });
    });
}

/// A step that has no page-locked memory fails, and those behind it go on as if nothing had
/// happened.
#[test]
fn steps_without_memory_lose_nothing() {
    let (_, file) = model([1, 8]);
    let device = Device::new_cpu().unwrap();
    let request = |n: u64| {
        let request = TextRequest::default().with_rows(20).with_prompt(vec![n as i32]).with_count(3 + n as usize);
        request.with_temperature(1.0).with_seed(n).with_stop(vec![])
    };
    let requests: Vec<_> = (0..8).map(request).collect();
    AnyStream::new(device).unwrap().enter(|s| {
        let mut server = TextServer::<_, f32>::from_tensors(s, &file, options().with_pages(8)).unwrap();
        let (texts, failed) = serve_all(&mut server, &requests, |_, _| ());
        assert_eq!(failed, 0);
        // A buffer has a page of 4096 bytes, so each limit lets another one fail.
        let mut failures = [0; 4];
        for limits in 1..=failures.len() {
            let limit = |step: usize, _: &_| {
                device.limit_pinned((step % (limits + 1) < limits).then_some(4096 * (step % (limits + 1))));
            };
            let (limited, failed) = serve_all(&mut server, &requests, limit);
            assert_eq!(limited, texts);
            failures[limits - 1] = failed;
        }
        assert!(failures.iter().all(|&failed| failed >= 10), "{failures:?}");
    });
}

#[test]
fn a_page_of_a_model_without_heads_has_no_bytes() {
    let (config, _) = model([3, 5]);
    assert_eq!(TextServerOptions::page_bytes::<bf16>(&config), 2 * 2 * 16 * 3 * 8 * 2);
    assert_eq!(TextServerOptions::page_bytes::<bf16>(&config.with_text_num_heads(0)), 0);
}
