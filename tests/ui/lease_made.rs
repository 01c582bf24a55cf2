//! The record behind an event.
use thalweg::event::{Event, Lease}; // bug
//~^ E0603 `event` `private`
use thalweg::Event; // fix

fn main() {
    let _: Option<Event<()>> = None;
}
