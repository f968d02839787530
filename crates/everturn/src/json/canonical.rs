//! The one spelling of a JSON value that digests are made of.
//!
//! Members sorted by their names' UTF-8 bytes, no white space, strings escaped one way, numbers as written. RFC 8785
//! would send numbers through doubles and merge 9007199254740993 with 9007199254740992.

use super::Node;
use super::node::quote;
use crate::Result;

pub(crate) fn canonical_bytes(text: &str) -> Result<Vec<u8>> {
    let mut out = String::with_capacity(text.len());
    write(&Node::parse(text)?, &mut out);
    Ok(out.into_bytes())
}

fn write(node: &Node, out: &mut String) {
    match node {
        Node::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            out.push('{');
            for (i, (key, value)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                quote(key, out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        Node::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        leaf => leaf.print_to(out),
    }
}

#[cfg(test)]
mod tests {
    use super::canonical_bytes;

    #[test]
    fn one_value_has_one_spelling() {
        let spellings = [r#"{"b":[1.0,"\u00e9"],"a":null}"#, " { \"a\" : null ,\n\"b\":[ 1.0, \"é\" ] } "];
        for text in spellings {
            assert_eq!(canonical_bytes(text).unwrap(), "{\"a\":null,\"b\":[1.0,\"é\"]}".as_bytes());
        }
        assert_ne!(canonical_bytes("9007199254740993").unwrap(), canonical_bytes("9007199254740992").unwrap());
    }
}
