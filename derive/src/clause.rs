//! The clauses of `kernel!`, whose constants are widened as its parameters are.

use proc_macro::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// Replaces each constant in an expression by a call of a function.
///
/// The input is the path of the function, a semicolon and the expression. A constant is a path
/// whose last name is in capital letters, with the fields, indices and `.len()` that follow it. It
/// is left as it is where it need not be a value: in braces, in brackets, in the arguments of
/// macros, and in those of generics.
pub(crate) fn widen(input: TokenStream) -> TokenStream {
    let mut tokens = input.into_iter();
    let function: Vec<TokenTree> = tokens.by_ref().take_while(|token| !is(Some(token), ';')).collect();
    expression(&function, tokens.collect())
}

fn expression(function: &[TokenTree], tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut out = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let start = at;
        match &tokens[at] {
            TokenTree::Ident(_) => {
                at = path(&tokens, at);
                let constant = matches!(&tokens[at - 1], TokenTree::Ident(name) if in_capitals(name));
                // A field, a function or a macro is not a constant. What `as` converts may be the
                // type in `<T as Trait>::N`, and what follows it is a type.
                let after = tokens.get(at);
                let is_macro = is(after, '!') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
                let other = is_call(after) || is_word(after, "as") || is_macro || is_path(&tokens, at);
                if constant && !other && !is_member(&tokens, start) {
                    at = places(&tokens, at);
                    // The call stands where the constant does, so an error points at the constant.
                    let place = tokens[start].span();
                    out.extend(function.iter().cloned().map(|mut token| {
                        token.set_span(token.span().located_at(place));
                        token
                    }));
                    let value = tokens[start..at].iter().cloned().collect();
                    let mut value = Group::new(Delimiter::Parenthesis, value);
                    value.set_span(value.span().located_at(place));
                    out.push(value.into());
                    continue;
                }
                if is_macro {
                    at += 2;
                } else if is_word(tokens.get(at - 1), "as") {
                    at += 1;
                }
                out.extend(tokens[start..].iter().take(at - start).cloned());
            }
            // The arguments of generics are copied up to the `>` that ends them.
            TokenTree::Punct(_) if is_path(&tokens, at) && is(tokens.get(at + 2), '<') => {
                let mut depth = 0;
                at += 2;
                while at < tokens.len() {
                    let arrow = is(tokens.get(at - 1), '-');
                    depth += i32::from(is(tokens.get(at), '<')) - i32::from(is(tokens.get(at), '>') && !arrow);
                    at += 1;
                    if depth == 0 {
                        break;
                    }
                }
                out.extend_from_slice(&tokens[start..at]);
            }
            TokenTree::Group(group) if matches!(group.delimiter(), Delimiter::Parenthesis | Delimiter::None) => {
                let mut inside = Group::new(group.delimiter(), expression(function, group.stream()));
                inside.set_span(group.span());
                out.push(inside.into());
                at += 1;
            }
            other => {
                out.push(other.clone());
                at += 1;
            }
        }
    }
    out.into_iter().collect()
}

/// Returns the end of the path that starts at `at`, without arguments of generics.
fn path(tokens: &[TokenTree], at: usize) -> usize {
    let mut end = at + 1;
    while is_path(tokens, end) && matches!(tokens.get(end + 2), Some(TokenTree::Ident(_))) {
        end += 3;
    }
    end
}

/// Returns the end of the fields, the indices and the `.len()` that start at `at`.
fn places(tokens: &[TokenTree], mut at: usize) -> usize {
    loop {
        match tokens.get(at) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => at += 1,
            dot if is(dot, '.') && !is(tokens.get(at + 1), '.') => match (tokens.get(at + 1), tokens.get(at + 2)) {
                (Some(TokenTree::Ident(name)), after) if is_call(after) => {
                    return if name.to_string() == "len" { at + 3 } else { at };
                }
                (Some(TokenTree::Ident(_) | TokenTree::Literal(_)), _) => at += 2,
                _ => return at,
            },
            _ => return at,
        }
    }
}

fn in_capitals(name: &Ident) -> bool {
    let name = name.to_string();
    name.contains(|c: char| c.is_uppercase()) && !name.contains(|c: char| c.is_lowercase())
}

fn is(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

fn is_path(tokens: &[TokenTree], at: usize) -> bool {
    is(tokens.get(at), ':') && is(tokens.get(at + 1), ':')
}

/// Returns whether the name at `at` follows a single `.` or a `:`, and so is no path of its own.
fn is_member(tokens: &[TokenTree], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).and_then(|i| tokens.get(i));
    is(before(1), ':') || (is(before(1), '.') && !is(before(2), '.'))
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(name)) if name.to_string() == word)
}

fn is_call(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
}
