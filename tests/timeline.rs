//! Tests of the timeline: spans on one axis, exports and metrics.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use testkit::devices::{alone, devices};
use testkit::gate::Gate;
use thalweg::{Activity, AnyStream, Device, DeviceKind, Error, Span, Timeline, Trace, concurrency_check, stream_tags};

/// The error that times from a GPU may have. Its timed events resolve about half of this.
const ROUNDING: Duration = Duration::from_micros(2);

/// Finds the only span with this label.
#[track_caller]
fn of<'t>(trace: &'t Trace, label: &str) -> &'t Span {
    let mut found = trace.spans().iter().filter(|span| *span.label == *label);
    let span = found.next().unwrap_or_else(|| panic!("no span `{label}`"));
    assert!(found.next().is_none(), "one span `{label}`");
    span
}

/// Checks that `first` ended before `second` began, within the error of the clocks.
#[track_caller]
fn in_turn(trace: &Trace, first: &str, second: &str) {
    let (a, b) = (of(trace, first), of(trace, second));
    let off = 2 * trace.clock_uncertainty() + ROUNDING;
    assert!(a.end <= b.start + off, "`{first}` ends at {:?}, `{second}` starts at {:?}", a.end, b.start);
}

#[test]
fn spans_are_ordered_as_the_streams_order_them() {
    let _alone = alone();
    for &device in devices() {
        let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        let timeline = Timeline::new(device).unwrap();
        let gate = Gate::closed(device);
        a.enter(|a| {
            b.enter(|b| {
                timeline.name(a, "first");
                timeline.name(b, "second");
                let mut x = a.alloc::<u32>(1 << 16).unwrap();
                // At the first fill a driver may load the kernel that fills, and wait for the
                // device.
                a.fill(&mut x, 0).unwrap();
                a.synchronize().unwrap();
                gate.hold(a);
                timeline.span(a, Activity::Compute, "fill on a", || a.fill(&mut x, 1)).unwrap();
                let mut x = a.hand_off(x, b).unwrap();
                timeline.span(b, Activity::Compute, "fill on b", || b.fill(&mut x, 2)).unwrap();
                timeline.host("main", "before the gate", || ());
                timeline.host("main", "gate", || gate.open());
                let x = timeline.wait("main", "wait for b", || b.record(x).unwrap().synchronize().unwrap());
                timeline.host("main", "after", || drop(x));
            });
        });
        let trace = timeline.finish().unwrap();
        assert_eq!(trace.spans().len(), 6, "{device}");
        in_turn(&trace, "before the gate", "gate");
        in_turn(&trace, "before the gate", "fill on a");
        in_turn(&trace, "fill on a", "fill on b");
        in_turn(&trace, "fill on a", "after");
        in_turn(&trace, "fill on b", "after");
        assert!(of(&trace, "gate").start <= of(&trace, "fill on a").end + 2 * trace.clock_uncertainty());
        assert_eq!((&*of(&trace, "fill on a").track, &*of(&trace, "fill on b").track), ("first", "second"));
        println!("{device}: aligned to {:?}\n{}\n{}", trace.clock_uncertainty(), trace.to_text(), trace.metrics());
    }
}

#[test]
fn threads_record_one_timeline() {
    let _alone = alone();
    const THREADS: usize = 4;
    const SPANS: usize = 200;
    for &device in devices() {
        let timeline = Timeline::new(device).unwrap();
        let streams = [0; THREADS].map(|_| AnyStream::new(device).unwrap());
        std::thread::scope(|threads| {
            for (thread, stream) in streams.iter().enumerate() {
                let timeline = timeline.clone();
                threads.spawn(move || {
                    stream.enter(|s| {
                        timeline.name(s, &format!("stream of {thread}"));
                        let mut x = s.alloc::<u32>(64).unwrap();
                        for i in 0..SPANS {
                            timeline.host(&format!("thread {thread}"), "prepare", || ());
                            let label = format!("{thread}.{i}");
                            timeline.span(s, Activity::Compute, &label, || s.fill(&mut x, i as u32)).unwrap();
                        }
                    });
                });
            }
        });
        let trace = timeline.finish().unwrap();
        assert_eq!(trace.spans().len(), 2 * THREADS * SPANS);
        for thread in 0..THREADS {
            let lane = format!("stream of {thread}");
            let spans: Vec<_> = trace.spans().iter().filter(|span| *span.track == *lane).collect();
            assert_eq!(spans.len(), SPANS);
            assert!(spans.iter().zip(0..).all(|(span, i)| *span.label == *format!("{thread}.{i}")));
            assert!(spans.windows(2).all(|w| w[0].end <= w[1].start + ROUNDING), "one after the other");
        }
        assert_eq!(timeline.finish().unwrap().spans().len(), 0, "what was returned is not returned again");
    }
}

#[test]
fn more_spans_are_pending_than_events_were_made() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        let timeline = Timeline::new(device).unwrap();
        stream.enter(|s| {
            let mut x = s.alloc::<u32>(64).unwrap();
            let gate = Gate::closed(device);
            gate.hold(s);
            // This needs more events than the timeline made at its start, but less work than makes
            // the host wait: a stream of a GPU takes about 1000 pieces.
            for i in 0..300 {
                timeline.span(s, Activity::Compute, "fill", || s.fill(&mut x, i)).unwrap();
            }
            gate.open();
            for i in 0..300 {
                timeline.span(s, Activity::Compute, "fill", || s.fill(&mut x, i)).unwrap();
            }
        });
        let trace = timeline.finish().unwrap();
        assert_eq!(trace.spans().len(), 600, "{device}");
        assert!(trace.spans().iter().all(|span| span.start <= span.end));
        assert!(trace.spans().windows(2).all(|w| w[0].end <= w[1].start + ROUNDING));
    }
}

#[test]
fn nested_spans_lie_inside() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        let timeline = Timeline::new(device).unwrap();
        stream.enter(|s| {
            let mut x = s.alloc::<u32>(64).unwrap();
            let all = || {
                for (i, label) in (0..).zip(["one", "two"]) {
                    timeline.span(s, Activity::Compute, label, || s.fill(&mut x, i))?;
                }
                Ok(())
            };
            timeline.host("main", "enqueue", || timeline.span(s, Activity::Compute, "all", all)).unwrap();
        });
        let trace = timeline.finish().unwrap();
        let all = of(&trace, "all");
        for label in ["one", "two"] {
            let inner = of(&trace, label);
            assert!(all.start <= inner.start + ROUNDING && inner.end <= all.end + ROUNDING, "{device}: {label}");
        }
        in_turn(&trace, "one", "two");
        assert!(trace.metrics().concurrency <= 2.01, "nesting counts once");
    }
}

#[test]
fn a_span_that_fails_is_not_recorded() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        let timeline = Timeline::new(device).unwrap();
        stream.enter(|s| {
            let (a, mut b) = (s.alloc::<u8>(1).unwrap(), s.alloc::<u8>(2).unwrap());
            let failed = timeline.span(s, Activity::Copy, "bad", || s.copy(&a, &mut b));
            assert!(matches!(failed, Err(Error::LengthMismatch { .. })));
            timeline.span(s, Activity::Compute, "good", || s.zero(&mut b)).unwrap();
        });
        let trace = timeline.finish().unwrap();
        assert_eq!(trace.spans().len(), 1);
        of(&trace, "good");
    }
}

#[test]
fn work_and_waits_of_the_host_are_told_apart() {
    let _alone = alone();
    let timeline = Timeline::new(Device::cpu().unwrap()).unwrap();
    assert_eq!(timeline.host("main", "work", || timeline.wait("main", "wait", || 7)), 7);
    let trace = timeline.finish().unwrap();
    let found = ["work", "wait"].map(|label| of(&trace, label).activity);
    assert_eq!(found, [Activity::Host, Activity::Wait]);
}

#[test]
fn streams_of_two_devices_are_not_compared() {
    let _alone = alone();
    let [a, b] = [(); 2].map(|()| AnyStream::new(Device::new_cpu().unwrap()).unwrap());
    let checked = a.enter(|a| b.enter(|b| concurrency_check(a, b).map(drop)));
    assert!(matches!(checked, Err(Error::DeviceMismatch { .. })), "{checked:?}");
}

/// The spans are still there for a later call.
#[test]
fn finish_in_a_host_function_is_refused() {
    let _alone = alone();
    for &device in devices() {
        let timeline = Timeline::new(device).unwrap();
        AnyStream::new(device).unwrap().enter(|s| {
            let mut x = s.alloc::<u32>(64).unwrap();
            timeline.span(s, Activity::Compute, "fill", || s.fill(&mut x, 1)).unwrap();
            let (inside, (tell, told)) = (timeline.clone(), std::sync::mpsc::channel());
            s.launch_host(move || tell.send(inside.finish().map(drop)).unwrap()).unwrap();
            s.synchronize().unwrap();
            assert!(matches!(told.recv().unwrap(), Err(Error::InHostFunction)), "{device}");
        });
        assert_eq!(timeline.finish().unwrap().spans().len(), 1, "{device}");
    }
}

#[test]
fn off_runs_and_records_nothing() {
    let _alone = alone();
    for &device in devices() {
        let stream = AnyStream::new(device).unwrap();
        let timeline = Timeline::disabled();
        assert!(!timeline.is_enabled() && Timeline::new(device).unwrap().is_enabled());
        stream.enter(|s| {
            timeline.name(s, "nobody");
            assert_eq!(timeline.span(s, Activity::Compute, "a", || Ok(1)).unwrap(), 1);
        });
        assert_eq!(timeline.host("main", "b", || 2) + timeline.wait("main", "c", || 3), 5);
        let trace = timeline.finish().unwrap();
        assert!(trace.spans().is_empty());
        assert!(trace.metrics().advice.contains("nothing"));
    }
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let timeline = Timeline::new(Device::new_cpu().unwrap()).unwrap();
    AnyStream::new(Device::new_cpu().unwrap()).unwrap().enter(|s| {
        let refused = timeline.span(s, Activity::Compute, "x", || -> thalweg::Result<()> { panic!("it must not run") });
        assert!(matches!(refused, Err(Error::DeviceMismatch { .. })));
    });
}

#[test]
fn a_seeded_device_has_a_timeline_too() {
    let device = Device::seeded_cpu(7).unwrap();
    let timeline = Timeline::new(device).unwrap();
    AnyStream::new(device).unwrap().enter(|s| {
        let mut x = s.alloc::<u8>(8).unwrap();
        timeline.span(s, Activity::Compute, "fill", || s.fill(&mut x, 1)).unwrap();
    });
    assert_eq!(timeline.finish().unwrap().spans().len(), 1);
}

#[test]
fn lanes_have_names_of_their_own() {
    stream_tags!(Upload);
    let device = Device::new_cpu().unwrap();
    let (up, lane) = (device.stream::<Upload>().unwrap(), AnyStream::new(device).unwrap());
    let timeline = Timeline::new(device).unwrap();
    timeline.span(&up, Activity::Upload, "a", || Ok(())).unwrap();
    timeline.host("Upload", "b", || ());
    let (one, two) = lane.enter(|s| {
        timeline.span(s, Activity::Compute, "c", || Ok(())).unwrap();
        let before = format!("stream {}", s.unique_id());
        let trace = timeline.finish().unwrap();
        assert_eq!(*of(&trace, "c").track, *before);
        assert_eq!((&*of(&trace, "a").track, &*of(&trace, "b").track), ("Upload", "Upload (host)"));
        timeline.name(s, "Upload");
        timeline.name(s, "Upload"); // The same name again changes nothing.
        timeline.span(s, Activity::Compute, "c", || Ok(())).unwrap();
        (format!("Upload ({})", s.unique_id()), timeline.finish().unwrap())
    });
    assert_eq!(*of(&two, "c").track, *one);
}

/// The host measures how long a stream waits at a gate. The time between timestamps and the span
/// must agree with it.
#[test]
fn times_are_as_long_as_a_stream_stands_at_a_gate() {
    let _alone = alone();
    for &device in devices() {
        let (stream, timeline) = (AnyStream::new(device).unwrap(), Timeline::new(device).unwrap());
        stream.enter(|s| {
            let gate = Gate::closed(device);
            let enqueued = Instant::now();
            let mut start = None;
            let hold = || {
                start = Some(s.timestamp()?);
                gate.hold(s);
                Ok(())
            };
            timeline.span(s, Activity::Compute, "stands", hold).unwrap();
            let end = s.timestamp().unwrap();
            let start = start.unwrap();
            start.synchronize().unwrap();
            let stands = Instant::now();
            assert_eq!(end.elapsed(&start).unwrap(), None, "{device}: it is not over");
            while stands.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            let least = stands.elapsed();
            gate.open();
            end.synchronize().unwrap();
            let most = enqueued.elapsed();
            let trace = timeline.finish().unwrap();
            for (what, time) in
                [("elapsed", end.elapsed(&start).unwrap().unwrap()), ("span", of(&trace, "stands").duration())]
            {
                // The clocks of the host and the device differ a little in rate.
                let (least, most) = (least.mul_f64(0.999), most.mul_f64(1.001) + ROUNDING);
                assert!(least <= time && time <= most, "{device}: {what}: {time:?} is not from {least:?} to {most:?}");
            }
            let metrics = trace.metrics();
            assert!(
                metrics.wall >= least.mul_f64(0.999) && metrics.tracks[0].busy >= least.mul_f64(0.999),
                "{metrics}"
            );
        });
    }
}

/// Makes a span of a hand-made trace. The times are in ms.
fn made(lane: &str, activity: Activity, start: u64, end: u64) -> Span {
    let ms = Duration::from_millis;
    Span { track: lane.into(), label: format!("{start}").into(), activity, start: ms(start), end: ms(end), line: None }
}

#[test]
fn metrics_of_traces_with_known_answers() {
    use Activity::{Compute, Download, Host, Upload, Wait};
    let ms = Duration::from_millis;

    // There are two copies and two kernels. The second copy runs during the first kernel.
    let trace: Trace = [
        made("up", Upload, 10, 20),
        made("up", Upload, 20, 30),
        made("gpu", Compute, 20, 30),
        made("gpu", Compute, 30, 40),
        made("main", Wait, 12, 40),
        made("main", Host, 10, 12),
    ]
    .into_iter()
    .collect();
    let metrics = trace.metrics();
    assert_eq!(metrics.wall, ms(30));
    assert_eq!(metrics.overlap, 0.5);
    assert_eq!(metrics.gpu_idle, ms(0));
    assert_eq!(metrics.host_wait, ms(28));
    assert!((metrics.concurrency - 42.0 / 30.0).abs() < 1e-12);
    assert_eq!(metrics.streams_busy, [ms(0), ms(20), ms(10)]);
    assert_eq!(metrics.speedup_over(ms(45)), 1.5);
    let lanes: Vec<_> = metrics.tracks.iter().map(|lane| (&*lane.track, lane.busy)).collect();
    assert_eq!(lanes, [("up", ms(20)), ("gpu", ms(20)), ("main", ms(2))]);
    assert!((metrics.tracks[0].utilization - 2.0 / 3.0).abs() < 1e-12);

    // A serial trace hides nothing, and its gap counts as idle.
    let serial: Trace =
        [made("s", Upload, 0, 10), made("s", Compute, 10, 20), made("s", Download, 25, 35)].into_iter().collect();
    let metrics = serial.metrics();
    assert_eq!((metrics.overlap, metrics.gpu_idle), (0.0, ms(5)));
    assert_eq!(metrics.streams_busy, [ms(5), ms(30)]);
    assert!(metrics.to_string().contains("streams busy at once     0: 14 %, 1: 86 %\n"), "{metrics}");
    assert!((metrics.concurrency - 30.0 / 35.0).abs() < 1e-12);
    // No output claims a speed-up, because this trace was not compared with another time.
    for text in [metrics.to_string(), serial.to_svg(), serial.to_text()] {
        assert!(!text.contains("speed"), "{text}");
    }
    assert!(metrics.to_string().contains("tracks busy on average       0.86\n"), "{metrics}");
    assert!(serial.to_svg().contains("0.86 tracks busy on average"));
    assert_eq!(metrics.speedup_over(metrics.wall), 1.0);
    assert!(metrics.advice.contains("take turns"), "{}", metrics.advice);

    // The upload limits this trace, and everything else is hidden.
    let bound: Trace =
        [made("up", Upload, 0, 97), made("gpu", Compute, 5, 60), made("down", Download, 60, 100)].into_iter().collect();
    let metrics = bound.metrics();
    assert_eq!(metrics.overlap, 1.0);
    assert!(metrics.advice.starts_with("upload-bound") && metrics.advice.contains("97 %"), "{}", metrics.advice);

    // At 50 GB/s, 100 ms carry 5 GB.
    let near = metrics.clone().with_upload_limit(4_850_000_000, 50e9).advice;
    assert_eq!(near, "upload-bound: 97 % of the upload limit, 48.5 of 50.0 GB/s");
    let far = metrics.clone().with_upload_limit(1_000_000_000, 50e9).advice;
    assert!(far.starts_with(&metrics.advice) && far.ends_with("20 % of the upload limit, 10.0 of 50.0 GB/s"), "{far}");
    assert_eq!(Trace::default().metrics().with_upload_limit(1, 1.0), Trace::default().metrics());
    for none in [0.0, -1.0] {
        assert_eq!(metrics.clone().with_upload_limit(1, none), metrics);
    }

    // There are only kernels, and the host waits between them.
    let waiting: Trace = (0..10)
        .flat_map(|i| [made("gpu", Compute, 10 * i, 10 * i + 4), made("main", Wait, 10 * i, 10 * i + 5)])
        .collect();
    let metrics = waiting.metrics();
    assert_eq!((metrics.overlap, metrics.host_wait, metrics.gpu_idle), (0.0, ms(50), ms(55)));
    assert!(metrics.advice.contains("waits"), "{}", metrics.advice);

    // Spans that are nested or doubled count once.
    let nested: Trace =
        [made("gpu", Compute, 0, 10), made("gpu", Compute, 2, 4), made("gpu", Compute, 0, 10)].into_iter().collect();
    assert_eq!(nested.metrics().tracks[0].busy, ms(10));
    assert_eq!(nested.metrics().concurrency, 1.0);
}

/// Copies of every kind run beside kernels, and a track that only waits does no work.
#[test]
fn overlap_is_of_every_copy_with_every_kernel() {
    use Activity::{Compute, Copy, Download, Upload, Wait};
    for copy in [Upload, Download, Copy] {
        // Each copy runs beside the kernel for a half of its time.
        let spans = [made("up", copy, 0, 10), made("up", copy, 20, 30), made("gpu", Compute, 5, 25)];
        let trace: Trace = spans.into_iter().chain([made("main", Wait, 0, 30)]).collect();
        let metrics = trace.metrics();
        assert_eq!(metrics.overlap, 0.5, "{copy:?}");
        assert_eq!(metrics.tracks.iter().map(|track| &*track.track).collect::<Vec<_>>(), ["up", "gpu"]);
    }
}

/// Each piece of advice from the share on at which it begins, and what there is just before.
#[test]
fn advice_changes_at_its_thresholds() {
    use Activity::{Compute, Copy, Upload, Wait};
    let advice = |spans: &[(Activity, u64, u64)]| {
        let ends = [made("main", Wait, 0, 1), made("main", Wait, 999, 1000)];
        let spans = spans.iter().map(|(activity, start, end)| made(&format!("{activity:?}"), *activity, *start, *end));
        spans.chain(ends).collect::<Trace>().metrics().advice
    };
    let cases = [
        ("compute-bound", [(Compute, 0, 900), (Upload, 0, 0), (Wait, 0, 0)]),
        ("no stage", [(Compute, 0, 899), (Upload, 0, 0), (Wait, 0, 0)]),
        ("copies and kernels take turns", [(Compute, 100, 800), (Upload, 0, 100), (Wait, 0, 0)]),
        ("no stage", [(Compute, 100, 800), (Upload, 1, 100), (Wait, 0, 0)]),
        ("copies and kernels take turns", [(Compute, 101, 800), (Upload, 0, 200), (Wait, 0, 0)]),
        ("no stage", [(Compute, 100, 800), (Upload, 0, 200), (Wait, 0, 0)]),
        ("the host waits", [(Compute, 0, 850), (Copy, 850, 900), (Wait, 1, 249)]),
        ("no stage", [(Compute, 0, 850), (Copy, 850, 900), (Wait, 2, 249)]),
        ("no stage", [(Compute, 0, 850), (Copy, 850, 901), (Wait, 1, 249)]),
        ("the device idles", [(Compute, 0, 750), (Upload, 0, 0), (Wait, 0, 0)]),
        ("no stage", [(Compute, 0, 751), (Upload, 0, 0), (Wait, 0, 0)]),
        ("nothing to improve", [(Wait, 0, 100), (Wait, 0, 0), (Wait, 0, 0)]),
    ];
    for (begin, spans) in cases {
        assert!(advice(&spans).starts_with(begin), "{spans:?}: {}", advice(&spans));
    }
    let second = [made("gpu", Compute, 0, 1000)].into_iter().collect::<Trace>().metrics();
    assert!(second.clone().with_upload_limit(900, 1000.0).advice.starts_with("upload-bound"));
    assert!(second.with_upload_limit(899, 1000.0).advice.starts_with("compute-bound"));
}

/// A span around a copy and a kernel covers both, and the gap between them.
#[test]
fn what_the_device_reports_counts_instead_of_the_spans_around_it() {
    let around = Span { line: Some(std::panic::Location::caller()), ..made("gpu", Activity::Compute, 0, 10) };
    let reported = [made("gpu", Activity::Upload, 0, 4), made("gpu", Activity::Compute, 6, 10)];
    let metrics = [around.clone()].into_iter().chain(reported).collect::<Trace>().metrics();
    assert_eq!((metrics.overlap, metrics.gpu_idle), (0.0, Duration::from_millis(2)));
    let upload = Span { line: around.line, ..made("up", Activity::Upload, 0, 4) };
    let metrics = [around, upload].into_iter().collect::<Trace>().metrics();
    assert_eq!((metrics.overlap, metrics.gpu_idle), (1.0, Duration::ZERO), "without reports, spans count");
}

#[test]
fn labels_are_added_up_without_their_numbers() {
    let ms = Duration::from_millis;
    let labeled =
        |label: &str, activity, start, end| Span { label: label.into(), ..made("lane", activity, start, end) };
    let trace: Trace = [
        labeled("copy 0", Activity::Upload, 0, 3),
        labeled("copy 1", Activity::Upload, 2, 4),
        labeled("copy 10", Activity::Download, 4, 5),
        labeled("kernel", Activity::Compute, 5, 20),
        labeled("7", Activity::Host, 0, 1),
        labeled("finish_f32", Activity::Copy, 0, 1),
    ]
    .into_iter()
    .collect();
    let table = trace.by_label();
    let rows: Vec<_> = table.rows().iter().map(|row| (row.activity, &*row.label, row.calls, row.total)).collect();
    let want = [
        (Activity::Compute, "kernel", 1, ms(15)),
        (Activity::Upload, "copy", 2, ms(5)),
        (Activity::Host, "7", 1, ms(1)),
        (Activity::Copy, "finish_f32", 1, ms(1)),
        (Activity::Download, "copy", 1, ms(1)),
    ];
    assert_eq!(rows, want);
    let copies = &table.rows()[1];
    assert_eq!((copies.mean(), copies.longest, copies.share), (ms(5) / 2, ms(3), 0.25));
    assert_eq!(table.to_string().lines().count(), 6, "{table}");
    assert!(Trace::default().by_label().to_string().ends_with("no span was recorded"));
    let name = |i: u8| format!("{}", char::from(b'a' + i));
    let many: Trace = (0..12).map(|i| labeled(&name(i), Activity::Compute, 0, 1 + u64::from(i))).collect();
    let [some, all] = [format!("{}", many.by_label()), format!("{:#}", many.by_label())];
    assert!(some.lines().count() == 12 && some.ends_with("\nand 2 more; {:#} prints all"), "{some}");
    assert!(all.lines().count() == 13 && all.contains("compute  a "), "{all}");
}

#[test]
fn empty_and_momentary_traces_export() {
    let moment: Trace =
        [made("up", Activity::Upload, 5, 5), made("gpu", Activity::Compute, 5, 3)].into_iter().collect();
    assert!(moment.spans().iter().all(|span| span.end == span.start), "none ends before it starts");
    for trace in [Trace::default(), moment] {
        let metrics = trace.metrics();
        assert_eq!((metrics.wall, metrics.overlap, metrics.concurrency), (Duration::ZERO, 0.0, 0.0));
        assert!(!metrics.to_string().contains("NaN"));
        assert_eq!(metrics.speedup_over(Duration::from_secs(1)), 0.0);
        check_xml(&trace.to_svg());
        assert!(!trace.to_svg().contains("NaN") && !trace.to_svg().contains("inf"));
        check_json(&trace);
        assert!(trace.to_text().lines().all(|line| line.chars().count() <= 120), "{}", trace.to_text());
    }
}

/// Checks that the XML is well-formed: elements close in order, and `&` and `<` occur only where
/// XML allows them.
#[track_caller]
fn check_xml(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        assert!(!text.contains('>'), "{text}");
        check_entities(text);
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        check_entities(tag);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    assert!(svg.chars().all(|c| c >= ' ' || c == '\n'), "no control characters");
}

#[track_caller]
fn check_entities(text: &str) {
    for after in text.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| after.starts_with(e)), "&{after}");
    }
}

/// Parses the Chrome format and finds every span in it.
#[track_caller]
fn check_json(trace: &Trace) {
    let json: serde_json::Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let complete: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(complete.len(), trace.spans().len());
    for span in trace.spans() {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let found = complete.iter().any(|e| {
            let thread = events.iter().find(|m| m["name"] == "thread_name" && m["tid"] == e["tid"]).unwrap();
            let line = span.line.map_or(serde_json::Value::Null, |line| line.to_string().into());
            e["name"] == *span.label
                && e["args"]["line"] == line
                && e["cat"] == span.activity.name()
                && thread["args"]["name"] == *span.track
                && (e["ts"].as_f64().unwrap() - us(span.start)).abs() < 1e-3
                && (e["dur"].as_f64().unwrap() - us(span.duration())).abs() < 1e-3
        });
        assert!(found, "{span:?}");
    }
}

#[test]
fn exports_escape_what_labels_hold() {
    let nasty = "a<b>&\"quoted\" \\ \n\t\u{1} \u{ffff} 'é' 日本";
    let trace: Trace = [
        Span { label: nasty.into(), ..made("up & <away>", Activity::Upload, 0, 100) },
        Span { label: "plain".into(), ..made(nasty, Activity::Compute, 50, 150) },
    ]
    .into_iter()
    .collect();
    let svg = trace.to_svg();
    check_xml(&svg);
    assert!(svg.contains("a&lt;b&gt;&amp;&quot;quoted&quot;") && svg.contains("up &amp; &lt;away&gt;"), "{svg}");
    assert!(svg.contains(">plain</text>"), "labels stand in bars that are wide enough");
    check_json(&trace);
}

#[test]
fn spans_name_the_line_that_opened_them() {
    let _alone = alone();
    for &device in devices() {
        let (stream, timeline) = (AnyStream::new(device).unwrap(), Timeline::new(device).unwrap());
        let first = line!() + 1;
        timeline.host("main", "on the host", || ());
        stream.enter(|s| {
            let mut x = s.alloc::<u32>(10).unwrap();
            timeline.span(s, Activity::Compute, "on a stream", || s.fill(&mut x, 1)).unwrap();
        });
        timeline.wait("main", "waits", || ());
        let trace = timeline.finish().unwrap();
        for (label, line) in [("on the host", first), ("on a stream", first + 3), ("waits", first + 5)] {
            let found = of(&trace, label).line.unwrap();
            assert_eq!((found.file(), found.line()), (file!(), line), "{label}");
            assert!(trace.to_svg().contains(&found.to_string()));
        }
        check_json(&trace);
    }
}

/// CUPTI says what a GPU ran, on the track of the span around it and within it, as far as the
/// clocks agree.
#[test]
fn a_gpu_reports_what_nobody_wrapped() {
    let _alone = alone();
    for &device in devices().iter().filter(|device| device.kind() == DeviceKind::Cuda) {
        let timeline = match Timeline::with_all_work(device) {
            Ok(timeline) => timeline,
            Err(Error::Library(why)) => {
                println!("NOT COVERED: {why}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        a.enter(|s| {
            timeline.name(s, "wrapped");
            let mut x = s.alloc::<u32>(1 << 20).unwrap();
            timeline.span(s, Activity::Compute, "span", || s.fill(&mut x, 1)).unwrap();
            let host = s.bind(device.pinned::<u32>(1 << 20).unwrap()).unwrap();
            s.copy_to_device(&host, &mut x).unwrap();
            s.synchronize().unwrap();
        });
        b.enter(|s| {
            drop(s.alloc_zeroed::<u8>(100).unwrap());
            s.synchronize().unwrap();
        });
        let trace = timeline.finish().unwrap();
        println!("{}", trace.to_text());
        let on = |track: &str, label: &str| {
            let mut found = trace.spans().iter().filter(|s| *s.track == *track && *s.label == *label);
            found.next().unwrap_or_else(|| panic!("no {label} on {track}: {:?}", trace.spans()))
        };
        let (span, fill) = (of(&trace, "span"), on("wrapped", "fill"));
        let off = 2 * trace.clock_uncertainty() + Duration::from_micros(100);
        assert!(span.start <= fill.start + off && fill.end <= span.end + off, "{span:?} {fill:?}");
        assert_eq!(on("wrapped", "copy of 4194304 bytes").activity, Activity::Upload);
        let others = trace.spans().iter().filter(|s| s.track.ends_with("without a span"));
        assert!(others.count() >= 1, "{:?}", trace.spans());
    }
}

/// The queues of the CPU device say what they ran, wrapped or not, and nested spans count once.
#[test]
fn the_cpu_device_reports_what_nobody_wrapped() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    let other = AnyStream::new(Device::new_cpu().unwrap()).unwrap();
    let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
    let timeline = Timeline::with_all_work(device).unwrap();
    assert!(matches!(Timeline::with_all_work(device), Err(Error::Parameter { .. })), "one at a time");
    other.enter(|s| drop(s.alloc_zeroed::<u8>(100).unwrap()));
    a.enter(|s| {
        timeline.name(s, "wrapped");
        let mut x = s.alloc::<u32>(1 << 20).unwrap();
        timeline.span(s, Activity::Compute, "span", || s.fill(&mut x, 1)).unwrap();
        let mut y = s.alloc::<u32>(1 << 20).unwrap();
        s.copy(&x, &mut y).unwrap();
        s.synchronize().unwrap();
    });
    b.enter(|s| {
        drop(s.alloc_zeroed::<u8>(100).unwrap());
        s.synchronize().unwrap();
    });
    AnyStream::new(device).unwrap().enter(|s| {
        timeline.name(s, "named alone");
        drop(s.alloc_zeroed::<u8>(100).unwrap());
        s.synchronize().unwrap();
    });
    let trace = timeline.finish().unwrap();
    let seen: Vec<_> = trace.spans().iter().map(|s| (&*s.track, &*s.label, s.activity, s.line.is_some())).collect();
    let unnamed = seen.iter().find(|s| s.0 != "wrapped").unwrap_or_else(|| panic!("{seen:?}")).0;
    assert!(unnamed.ends_with("without a span"), "{unnamed}");
    let want = [
        ("wrapped", "span", Activity::Compute, true),
        ("wrapped", "fill", Activity::Compute, false),
        ("wrapped", "copy of 4194304 bytes", Activity::Copy, false),
        (unnamed, "fill", Activity::Compute, false),
        ("named alone", "fill", Activity::Compute, false),
    ];
    assert_eq!(seen, want);
    let (span, fill) = (&trace.spans()[0], &trace.spans()[1]);
    assert!(span.start <= fill.start && fill.end <= span.end + ROUNDING, "{span:?} {fill:?}");
    assert!(trace.metrics().tracks[0].busy <= trace.metrics().wall);
    check_json(&trace);
    drop(timeline);
    // Its thread may still be at work. The next timeline may begin all the same.
    for _ in 0..20 {
        let timeline = Timeline::with_all_work(device).unwrap();
        a.enter(|s| (0..64).for_each(|_| timeline.span(s, Activity::Compute, "", || Ok(())).unwrap()));
    }
    let disabled = Timeline::new(device).unwrap();
    b.enter(|s| s.zero(&mut s.alloc::<u8>(9).unwrap()).unwrap());
    assert!(disabled.finish().unwrap().spans().is_empty());
}

#[test]
fn pictures_of_many_spans_stay_small() {
    let trace: Trace = (0..100_000)
        .map(|i| Span {
            start: Duration::from_micros(10 * i),
            end: Duration::from_micros(10 * i + 5),
            ..made("up", Activity::Upload, 0, 0)
        })
        .collect();
    let svg = trace.to_svg();
    assert!(svg.len() < 1 << 20, "{} bytes", svg.len());
    check_xml(&svg);
    assert!((trace.metrics().tracks[0].utilization - 0.5).abs() < 1e-3);
}

#[test]
fn saves_by_extension() {
    let trace: Trace = [made("up", Activity::Upload, 0, 10)].into_iter().collect();
    let folder = std::env::temp_dir().join(format!("thalweg-timeline-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, content) in [("t.svg", trace.to_svg()), ("t.json", trace.to_chrome_json()), ("t.txt", trace.to_text())] {
        trace.save(folder.join(name)).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), content);
    }
    let wrong = trace.save(folder.join("t.png")).unwrap_err();
    assert!(matches!(&wrong, Error::Parameter { expected, .. } if expected.contains(".svg")), "{wrong}");
    let Err(Error::File { source, .. }) = trace.save(folder.join("no/such/folder.svg")) else {
        panic!("it is written")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn one_stream_is_not_concurrent_with_itself() {
    let _alone = alone();
    for &device in devices() {
        let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        a.enter(|a| {
            let same = concurrency_check(a, a).unwrap();
            assert!(!same.at_once(), "{device}: {same}");
            let two = b.enter(|b| concurrency_check(a, b)).unwrap();
            assert!((0.0..=1.0).contains(&two.overlap) && !two.in_turn.is_zero() && !two.together.is_zero());
            testkit::devices::report(&format!("{device}: {two}"));
        });
    }
    let [a, b] = [0; 2].map(|_| AnyStream::new(Device::new_cpu().unwrap()).unwrap());
    let refused = a.enter(|a| b.enter(|b| concurrency_check(a, b)));
    assert!(matches!(refused, Err(Error::DeviceMismatch { .. })));
}

/// Other work on the machine may keep two streams from running at once for a while. The test fails
/// only if they never do within a minute.
#[test]
fn two_streams_are_found_to_run_at_once() {
    let _alone = alone();
    for &device in devices() {
        if device.multiprocessors() == 1 {
            testkit::devices::report(&format!(
                "NOT COVERED on {device}: streams at once, which one processor cannot run"
            ));
            continue;
        }
        let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        let start = Instant::now();
        loop {
            let found = a.enter(|a| b.enter(|b| concurrency_check(a, b))).unwrap();
            if found.at_once() {
                assert!(found.together < found.in_turn && found.to_string().contains("run at once"), "{found}");
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{device}: never in a minute: {found}");
        }
    }
}

proptest! {
    /// The times of a trace, by counting milliseconds one by one. Each is at most the whole time,
    /// also where several threads wait at once.
    #[test]
    fn times_are_shares_of_the_whole(
        spans in prop::collection::vec((0..3usize, 0..6usize, 0..40u64, 0..20u64), 0..12)
    ) {
        use Activity::{Compute, Copy, Download, Host, Upload, Wait};
        let activities = [Upload, Compute, Download, Copy, Host, Wait];
        let spans: Vec<Span> = spans
            .into_iter()
            .map(|(track, activity, start, length)| {
                made(["a", "b", "c"][track], activities[activity], start, start + length)
            })
            .collect();
        let metrics = spans.iter().cloned().collect::<Trace>().metrics();
        let during = |which: &[Activity]| {
            let runs = |t: u64| {
                let t = Duration::from_millis(t);
                spans.iter().any(|span| which.contains(&span.activity) && span.start <= t && t < span.end)
            };
            Duration::from_millis((0..60).filter(|t| runs(*t)).count() as u64)
        };
        prop_assert_eq!(metrics.host_wait, during(&[Wait]));
        prop_assert_eq!(metrics.gpu_idle, metrics.wall - during(&[Upload, Compute, Download, Copy]));
        let on_device = [Upload, Compute, Download, Copy];
        let mut busy = vec![Duration::ZERO; metrics.streams_busy.len()];
        let first = spans.iter().map(|span| span.start).min().unwrap_or_default();
        for t in (0..60).map(Duration::from_millis).filter(|t| (first..first + metrics.wall).contains(t)) {
            let runs = |track: &str| {
                let own = |span: &&Span| *span.track == *track && on_device.contains(&span.activity);
                spans.iter().filter(own).any(|span| span.start <= t && t < span.end)
            };
            busy[["a", "b", "c"].into_iter().filter(|track| runs(track)).count()] += Duration::from_millis(1);
        }
        prop_assert_eq!(&metrics.streams_busy, &busy);
        prop_assert!(metrics.host_wait <= metrics.wall && (0.0..=1.0).contains(&metrics.overlap));
        prop_assert!(metrics.tracks.iter().all(|track| (0.0..=1.0).contains(&track.utilization)));
        prop_assert!(metrics.concurrency <= 1e-9 + metrics.tracks.len() as f64);
    }
}

/// Spans can be of any times. Those of two lanes added up to more than a `Duration` holds, which
/// panicked.
#[test]
fn traces_of_any_times_have_metrics() {
    let span = |lane: &str, activity, start, end| Span {
        track: lane.into(),
        label: "x 1".into(),
        activity,
        start,
        end,
        line: None,
    };
    let activities = [Activity::Upload, Activity::Compute, Activity::Host, Activity::Wait];
    let all = activities.map(|activity| {
        let lane = format!("{activity:?}");
        [
            span(&lane, activity, Duration::ZERO, Duration::MAX),
            span(&format!("{lane} too"), activity, Duration::ZERO, Duration::MAX),
        ]
    });
    let trace: Trace = all.into_iter().flatten().collect();
    let metrics = trace.metrics();
    assert_eq!((metrics.wall, metrics.host_wait), (Duration::MAX, Duration::MAX));
    assert!(trace.by_label().rows().iter().all(|row| row.calls == 2 && row.total == Duration::MAX));
    assert!(!trace.to_svg().is_empty() && !trace.to_text().is_empty() && !trace.to_chrome_json().is_empty());
}
