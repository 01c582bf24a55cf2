//! Generic kernels, which `kernel!` makes one kernel for each named instance of.
//!
//! The names of entries and the types of parameters are literal tokens, so a parameter of generics
//! is replaced by its argument in the parameters of the kernel and in its clauses. In the bodies it
//! is an alias or a constant: `type T = f32;` and `const N: u32 = 4;` stand before them. Items of a
//! body can name it too, and a token that only looks like it, such as a field, stays what it is.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, GenericParam, Generics, Result, Token, braced, bracketed, parenthesized};

/// A generic kernel, as `kernel!` passes it on.
pub(crate) struct Kernel {
    /// The path of `thalweg-simt`.
    simt: TokenStream,
    attributes: TokenStream,
    visibility: TokenStream,
    /// The keyword, if there is one.
    unsafety: TokenStream,
    name: Ident,
    generics: Generics,
    parameters: TokenStream,
    instances: Vec<Instance>,
    /// The clauses and the body.
    rest: Vec<TokenTree>,
}

/// `NAME = <ARGUMENT, ...>`.
struct Instance {
    name: Ident,
    arguments: Vec<TokenStream>,
}

impl Parse for Instance {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        input.parse::<Token![<]>()?;
        let mut arguments = Vec::new();
        while !input.peek(Token![>]) {
            let sign = input.parse::<Option<Token![-]>>()?;
            let value: TokenTree = input.parse()?;
            arguments.push(quote! { #sign #value });
            if !input.peek(Token![>]) && input.parse::<Token![,]>().is_err() {
                let message = "an argument of an instance is one name, number, array or block in braces: bring a type \
                               into scope with `use` and write its name";
                return Err(input.error(message));
            }
        }
        input.parse::<Token![>]>()?;
        Ok(Self { name, arguments })
    }
}

impl Parse for Kernel {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        // Fragments that `kernel!` has matched arrive in groups of their own.
        let in_brackets = || {
            let content;
            bracketed!(content in input);
            content.parse::<TokenStream>()
        };
        let (simt, attributes, visibility, unsafety) = (in_brackets()?, in_brackets()?, in_brackets()?, in_brackets()?);
        let name: Ident = input.parse()?;
        let generics: Generics = input.parse()?;
        let content;
        parenthesized!(content in input);
        let parameters = content.parse()?;
        let keyword = input.parse::<Option<Ident>>()?;
        if keyword.is_none_or(|keyword| keyword != "instances") {
            let message = format!(
                "a generic kernel names its instances after its parameters: `instances {{ {name}_f32 = <f32>, .. }}`"
            );
            return Err(Error::new(name.span(), message));
        }
        let content;
        braced!(content in input);
        let instances = Punctuated::<Instance, Token![,]>::parse_terminated(&content)?.into_iter().collect();
        let rest = input.parse::<TokenStream>()?.into_iter().collect();
        Ok(Self { simt, attributes, visibility, unsafety, name, generics, parameters, instances, rest })
    }
}

impl Kernel {
    /// Makes the kernel of each instance, and the launcher that chooses among them by its types.
    pub(crate) fn expand(&self) -> Result<TokenStream> {
        if let Some(lifetime) = self.generics.lifetimes().next() {
            return Err(Error::new_spanned(lifetime, "a kernel is generic over types and constants only"));
        }
        let kernels = self.instances.iter().map(|instance| self.instance(instance)).collect::<Result<Vec<_>>>()?;
        let launcher = self.launcher()?;
        Ok(quote! { #(#kernels)* #launcher })
    }

    fn instance(&self, instance: &Instance) -> Result<TokenStream> {
        let Self { simt, attributes, visibility, unsafety, generics, .. } = self;
        let Instance { name, arguments } = instance;
        let wanted = generics.params.len();
        if arguments.len() != wanted {
            let message =
                format!("`{}` has {wanted} parameters of generics, and this instance {}", self.name, arguments.len());
            return Err(Error::new(name.span(), message));
        }
        let (mut replaced, mut items) = (Vec::new(), TokenStream::new());
        for (parameter, argument) in generics.params.iter().zip(arguments) {
            match parameter {
                GenericParam::Type(t) => {
                    let ident = &t.ident;
                    replaced.push((ident.to_string(), argument.clone()));
                    items.extend(quote! { #[allow(dead_code)] type #ident = #argument; });
                }
                GenericParam::Const(c) => {
                    let (ident, ty) = (&c.ident, &c.ty);
                    replaced.push((ident.to_string(), argument.clone()));
                    items.extend(quote! { #[allow(dead_code, unused_braces)] const #ident: #ty = #argument; });
                }
                GenericParam::Lifetime(_) => {}
            }
        }
        let parameters = replace(self.parameters.clone(), &replaced);
        let mut rest = TokenStream::new();
        let mut is_cpu = false;
        for (i, token) in self.rest.iter().enumerate() {
            match token {
                TokenTree::Group(body) if is_cpu || i + 1 == self.rest.len() => {
                    let mut group = Group::new(Delimiter::Brace, quote! { #items #body });
                    group.set_span(body.span());
                    group.to_tokens(&mut rest);
                }
                clause => rest.extend(replace(clause.to_token_stream(), &replaced)),
            }
            is_cpu = matches!(token, TokenTree::Ident(word) if word == "cpu");
        }
        // The bounds hold for the arguments of an instance, where an error points at.
        let arguments = arguments.iter().map(|argument| spanned(argument, name.span()));
        let bounds = quote_spanned! { name.span() =>
            const _: () = {
                #[allow(dead_code, clippy::extra_unused_type_parameters)]
                const fn bounds #generics () {}
                bounds::<#(#arguments),*>();
            };
        };
        Ok(quote! {
            #bounds
            #simt::kernel! { #attributes #visibility #unsafety fn #name(#parameters) #rest }
        })
    }

    /// Makes the generic launcher. A hidden trait has an implementation for each instance.
    fn launcher(&self) -> Result<TokenStream> {
        let Self { simt, attributes, visibility, name, generics, .. } = self;
        let (mut names, mut parameters) = (Vec::new(), Vec::new());
        let mut tokens = self.parameters.clone().into_iter().peekable();
        // The first parameter is the context.
        while tokens.next().is_some_and(|token| !is(&token, ',')) {}
        while let Some(parameter) = tokens.next() {
            let (Some(_colon), Some(kind)) = (tokens.next(), tokens.next()) else {
                return Err(Error::new(parameter.span(), "expected `NAME: TYPE`"));
            };
            let host = match tokens.next_if(|token| is(token, '<')).and_then(|_| tokens.next()) {
                Some(element) if matches!(&kind, TokenTree::Ident(kind) if kind == "In") => {
                    quote! { &#simt::host::DeviceSlice<__S, #element> }
                }
                Some(element) => quote! { &mut #simt::host::DeviceSlice<__S, #element> },
                None => quote! { #kind },
            };
            names.push(parameter);
            parameters.push(host);
            // What follows up to the comma are the extents and owners of a buffer.
            while tokens.next().is_some_and(|token| !is(&token, ',')) {}
        }
        let choices = format_ident!("__{name}_instances");
        let on = Ident::new("on", Span::mixed_site()); // a parameter of the kernel may be called so too
        let plain: Vec<_> = generics.params.iter().map(without_bounds).collect();
        let given: Vec<_> = generics.params.iter().map(identifier).collect();
        let (mut implementations, mut listed) = (TokenStream::new(), Vec::new());
        for Instance { name, arguments } in &self.instances {
            listed.push(format!("{name} = <{}>", quote! { #(#arguments),* }.to_string().replace(" ,", ",")));
            let replaced: Vec<_> =
                generics.params.iter().map(|p| identifier(p).to_string()).zip(arguments.iter().cloned()).collect();
            let parameters = parameters.iter().map(|host| replace(host.clone(), &replaced));
            let arguments = generics.params.iter().zip(arguments).map(|(parameter, argument)| match parameter {
                // A block or a number may stand there as it is, and a name would be a type.
                GenericParam::Const(_) if syn::parse2::<Ident>(argument.clone()).is_ok() => quote! { { #argument } },
                _ => argument.clone(),
            });
            implementations.extend(quote_spanned! { name.span() =>
                #[cfg(not(target_arch = "nvptx64"))]
                impl #choices<#(#arguments),*> for () {
                    #[track_caller]
                    fn launch<__S, __L: #simt::host::Launch<__S> + ?#simt::__core::marker::Sized>(
                        #on: &__L, #(#names: #parameters),*
                    ) -> #simt::__core::result::Result<(), __L::Error> {
                        #name(#on, #(#names),*)
                    }
                }
            });
        }
        let message = format!("the kernel `{name}` has no instance for these types and constants");
        let note = format!("its instances are {}", listed.join(", "));
        Ok(quote! {
            #[cfg(not(target_arch = "nvptx64"))]
            #[doc(hidden)]
            #[allow(non_camel_case_types)]
            #[diagnostic::on_unimplemented(message = #message, note = #note)]
            #visibility trait #choices<#(#plain),*> {
                #[track_caller]
                #[allow(clippy::too_many_arguments)]
                fn launch<__S, __L: #simt::host::Launch<__S> + ?#simt::__core::marker::Sized>(
                    #on: &__L, #(#names: #parameters),*
                ) -> #simt::__core::result::Result<(), __L::Error>;
            }
            #implementations
            #[cfg(not(target_arch = "nvptx64"))]
            #attributes
            #[track_caller]
            #[allow(clippy::too_many_arguments, dead_code)]
            #visibility fn #name<#(#plain,)* __S, __L: #simt::host::Launch<__S> + ?#simt::__core::marker::Sized>(
                #on: &__L, #(#names: #parameters),*
            ) -> #simt::__core::result::Result<(), __L::Error>
            where
                (): #choices<#(#given),*>,
            {
                <() as #choices<#(#given),*>>::launch(#on, #(#names),*)
            }
        })
    }
}

/// Replaces names by what they stand for, except members and parts of paths.
fn replace(tokens: TokenStream, replaced: &[(String, TokenStream)]) -> TokenStream {
    let mut out = TokenStream::new();
    let mut after_dot = false;
    let mut colons = 0;
    for token in tokens {
        let member = after_dot || colons > 1;
        after_dot = is(&token, '.') && !after_dot;
        colons = if is(&token, ':') { colons + 1 } else { 0 };
        match token {
            TokenTree::Ident(word) if !member => match replaced.iter().find(|(name, _)| word == name) {
                // An argument stands where its parameter does, and is no text of the author there:
                // what is odd about `vector || !true` is so for one instance.
                Some((_, argument)) => out.extend(spanned(argument, Span::mixed_site().located_at(word.span()))),
                None => word.to_tokens(&mut out),
            },
            TokenTree::Group(group) => {
                let mut inside = Group::new(group.delimiter(), replace(group.stream(), replaced));
                inside.set_span(group.span());
                inside.to_tokens(&mut out);
            }
            other => other.to_tokens(&mut out),
        }
    }
    out
}

fn spanned(tokens: &TokenStream, span: Span) -> TokenStream {
    let respanned = tokens.clone().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    respanned.collect()
}

fn without_bounds(parameter: &GenericParam) -> TokenStream {
    match parameter {
        GenericParam::Const(c) => {
            let (ident, ty) = (&c.ident, &c.ty);
            quote! { const #ident: #ty }
        }
        other => identifier(other).to_token_stream(),
    }
}

fn identifier(parameter: &GenericParam) -> Ident {
    match parameter {
        GenericParam::Type(t) => t.ident.clone(),
        GenericParam::Const(c) => c.ident.clone(),
        GenericParam::Lifetime(l) => l.lifetime.ident.clone(),
    }
}

fn is(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}
