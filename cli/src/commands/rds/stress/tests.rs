//! Messages that were damaged.

use super::*;

#[test]
fn a_message_that_has_changed_anywhere_is_noticed() {
    let pattern = Pattern::new();
    let head = Head {
        number: 260,
        reply: 16,
    };
    let mut message = Vec::new();
    pattern.fill(&mut message, 40, head);
    assert_eq!(pattern.check(&message), Some(head));
    assert_eq!(pattern.check(&message[..39]), None);
    for at in 12..40 {
        let mut changed = message.clone();
        changed[at] ^= 1;
        assert_eq!(pattern.check(&changed), None, "byte {at}");
    }
    // The number decides on the bytes after it.
    message[7] ^= 1;
    assert_eq!(pattern.check(&message), None);
    for length in 0..HEADER {
        assert_eq!(pattern.check(&message[..length]), None);
    }
    pattern.fill(
        &mut message,
        HEADER,
        Head {
            reply: MAX_MESSAGE + 1,
            ..head
        },
    );
    assert_eq!(pattern.check(&message), None);
}
