//! The timeline: spans on one axis, exports, metrics.

mod support;

use std::time::Duration;

use support::devices::devices;
use support::gate::Gate;
use thalweg::{Activity, AnyStream, Span, Timeline, Trace};

/// The only span of this label.
#[track_caller]
fn of<'t>(trace: &'t Trace, label: &str) -> &'t Span {
    let mut found = trace.spans().iter().filter(|span| *span.label == *label);
    let span = found.next().unwrap_or_else(|| panic!("no span `{label}`"));
    assert!(found.next().is_none(), "one span `{label}`");
    span
}

/// `first` ended before `second` began, as well as the clocks can say.
#[track_caller]
fn in_turn(trace: &Trace, first: &str, second: &str) {
    let (a, b) = (of(trace, first), of(trace, second));
    let off = 2 * trace.alignment() + Duration::from_micros(1);
    assert!(a.end <= b.start + off, "`{first}` ends at {:?}, `{second}` starts at {:?}", a.end, b.start);
}

#[test]
fn spans_are_ordered_as_the_streams_order_them() {
    for &device in devices() {
        let (a, b) = (AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap());
        let timeline = Timeline::new(device).unwrap();
        let gate = Gate::closed(device);
        a.enter(|a| {
            b.enter(|b| {
                timeline.name(a, "first");
                timeline.name(b, "second");
                let mut x = a.alloc::<u32>(1 << 16).unwrap();
                gate.hold(a);
                timeline.span(a, Activity::Compute, "fill on a", || a.fill(&mut x, 1)).unwrap();
                let mut x = a.hand(x, b).unwrap();
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
        assert!(of(&trace, "gate").start <= of(&trace, "fill on a").end + 2 * trace.alignment());
        assert_eq!((&*of(&trace, "fill on a").lane, &*of(&trace, "fill on b").lane), ("first", "second"));
        println!("{device}: aligned to {:?}\n{}\n{}", trace.alignment(), trace.to_text(), trace.metrics());
    }
}
