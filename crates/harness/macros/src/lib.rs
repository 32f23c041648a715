//! The attribute `test` of the crate `linewarden-harness`, which exports the attribute.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Registers the function as a test, like the attribute `test` of the standard library.
///
/// The attributes `ignore` and `should_panic` have the same effect as with the standard library, but `ignore` requires a
/// reason, which the test's result shows. An `async` function runs
/// in a Tokio runtime of one thread; the attribute's arguments are those of `tokio::main`, for example
/// `#[test(flavor = "multi_thread")]`.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    register(arguments, item).unwrap_or_else(|error| source(&format!("compile_error!({error:?});")))
}

const NO_FUNCTION: &str = "the attribute `test` requires a function with a body";
const NO_REASON: &str = "the attribute `ignore` has no reason; write `#[ignore = \"REASON\"]`";

/// The function with the registration as the first item of the body.
///
/// # Errors
/// The item is no function with a body, or its attribute `ignore` has no reason.
fn register(arguments: TokenStream, item: TokenStream) -> Result<TokenStream, &'static str> {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let Some(TokenTree::Group(body)) = tokens.pop() else {
        return Err(NO_FUNCTION);
    };
    let function = tokens.iter().position(|token| is_word(token, "fn"));
    let Some(TokenTree::Ident(name)) = function.and_then(|at| tokens.get(at + 1)).cloned() else {
        return Err(NO_FUNCTION);
    };

    let (mut ignored, mut panics) = (source("None"), source("None"));
    let mut output = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if is_word(&token, "async") {
            let runtime = if arguments.is_empty() {
                "flavor = \"current_thread\""
            } else {
                &arguments.to_string()
            };
            output.extend(source(&format!("#[::tokio::main({runtime})]")));
        }
        if let (TokenTree::Punct(mark), Some(TokenTree::Group(attribute))) = (&token, tokens.peek())
            && mark.as_char() == '#'
        {
            let text = attribute.stream().into_iter().find_map(literal);
            let (target, text) = match attribute.stream().into_iter().next() {
                Some(word) if is_word(&word, "ignore") => (&mut ignored, text.ok_or(NO_REASON)?),
                Some(word) if is_word(&word, "should_panic") => {
                    (&mut panics, text.unwrap_or_else(|| source("\"\"")))
                }
                _ => {
                    output.extend([token]);
                    continue;
                }
            };
            *target = [source("Some"), parentheses(text)].into_iter().collect();
            tokens.next();
            continue;
        }
        output.extend([token]);
    }

    let comma = || source(",");
    let registration = parentheses(
        [TokenTree::Ident(name).into(), comma(), ignored, comma(), panics]
            .into_iter()
            .collect::<TokenStream>(),
    );
    let body: TokenStream = [
        source("::linewarden_harness::register!"),
        registration,
        source(";"),
        body.stream(),
    ]
    .into_iter()
    .collect();
    output.extend([TokenTree::Group(Group::new(Delimiter::Brace, body))]);
    Ok(output)
}

/// The first literal in the token, also in its groups.
fn literal(token: TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Literal(_) => Some(token.into()),
        TokenTree::Group(group) => group.stream().into_iter().find_map(literal),
        _ => None,
    }
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident.to_string() == word)
}

fn parentheses(content: TokenStream) -> TokenStream {
    TokenTree::Group(Group::new(Delimiter::Parenthesis, content)).into()
}

fn source(text: &str) -> TokenStream {
    text.parse().unwrap_or_default()
}
