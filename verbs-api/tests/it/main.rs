//! The API over a mock provider: rules, errors, events and objects.

mod capability;
mod control;
mod errors;
mod events;
mod extensions;
mod futures;
mod mock;
mod objects;
mod page_lists;
mod portable;
mod posting;
mod states;
