//! `#[derive(Resource)]` for thalweg: a struct of buffers moves between
//! streams as one value. For `thalweg-simt` it also has a part of `kernel!`.

mod clause;
mod instances;
mod setters;

use proc_macro::TokenStream;
use proc_macro2::{Ident, Span};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Result, parse_macro_input};

/// Makes a struct of resources a resource. `struct Slot { .. }` gets the ordered form `SlotOn<S>`.
/// It has the same field names, and each resource in it is in its own ordered form.
///
/// - A field is a resource (a buffer or a composite of buffers) or metadata marked
///   `#[resource(plain)]`. Metadata is `Clone + Send + 'static`. It is readable in the struct and
///   in its ordered form.
/// - The struct does not implement `Drop`. The derive moves fields out of the struct, so a `Drop`
///   is a compile error.
/// - The struct has no lifetime parameters. Type parameters need the bounds that the fields need,
///   such as `'static`.
/// - `#[resource(unzip)]` on the struct also makes `SlotEvents`. It has the same field names, and
///   each resource in it is behind an event of its own. `Event<Slot>::unzip` returns it.
///
/// ```ignore
/// #[derive(Resource)]
/// struct Slot {
///     host: PinnedBuffer<u8>,
///     image: DeviceBuffer<u8>,
///     #[resource(plain)]
///     name: String,
/// }
/// ```
#[proc_macro_derive(Resource, attributes(resource))]
pub fn derive_resource(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Gives a struct of options a method `with_FIELD` for each public field, which sets it. Structs of
/// options are `#[non_exhaustive]`, so programs begin with the default and set what they need.
#[doc(hidden)]
#[proc_macro_derive(__Setters)]
pub fn __derive_setters(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    setters::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Widens the constants in a clause of `kernel!`, which expands to it.
#[doc(hidden)]
#[proc_macro]
pub fn __clause(input: TokenStream) -> TokenStream {
    clause::widen(input)
}

/// Makes the kernels of a generic declaration of `kernel!`, which expands to it.
#[doc(hidden)]
#[proc_macro]
pub fn __instances(input: TokenStream) -> TokenStream {
    let kernel = parse_macro_input!(input as instances::Kernel);
    kernel.expand().unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "`Resource` can be derived for structs only"));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new_spanned(lifetime, "a resource owns its memory and cannot hold a borrow"));
    }
    let fields = match &data.fields {
        Fields::Named(fields) => &fields.named,
        _ => {
            return Err(Error::new_spanned(
                &input.ident,
                "`Resource` can be derived for structs with named fields only",
            ));
        }
    };

    let (ident, vis) = (&input.ident, &input.vis);
    let unzips = has_option(&input.attrs, "unzip")?;
    let on = format_ident!("{ident}On");
    let doc = format!("[`{ident}`] while stream `__S` orders it.");

    // These identifiers have the hygiene of the macro, so a field of the same name is another one.
    let own = |name| Ident::new(name, Span::mixed_site());
    let (visit, sink, stream, token) = (own("__visit"), own("__sink"), own("__stream"), own("__token"));
    let splitter = own("__splitter");
    let mut names = Vec::new();
    let mut declarations = Vec::new();
    let (mut event_fields, mut events) = (vec![], vec![]);
    let (mut leaves, mut drain, mut bind, mut unbind, mut alias) = (vec![], vec![], vec![], vec![], vec![]);
    let mut producers = vec![];
    for field in fields {
        let plain = has_option(&field.attrs, "plain")?;
        let (name, ty, field_vis) = (&field.ident, &field.ty, &field.vis);
        let docs: Vec<_> = field.attrs.iter().filter(|a| a.path().is_ident("doc")).collect();
        names.push(name);
        if plain {
            declarations.push(quote! { #(#docs)* #field_vis #name: #ty });
            event_fields.push(quote! { #(#docs)* #field_vis #name: #ty });
            events.push(quote! { #name });
            bind.push(quote! { #name });
            unbind.push(quote! { #name });
            alias.push(quote! { #name: ::core::clone::Clone::clone(#name) });
            leaves.push(quote! { let _ = #name; });
            drain.push(quote! { let _ = #name; });
            producers.push(quote! { let _ = #name; });
        } else {
            let resource = quote! { <#ty as ::thalweg::Resource> };
            declarations.push(quote! { #(#docs)* #field_vis #name: #resource::On<__S> });
            event_fields.push(quote! { #(#docs)* #field_vis #name: ::thalweg::Event<#ty> });
            events.push(quote! { #name: ::thalweg::Splitter::event(#splitter, #name) });
            bind.push(quote! { #name: #resource::__bind(#name, #stream, #token) });
            unbind.push(quote! { #name: ::thalweg::Bundle::<__S>::__unbind(#name, #token) });
            alias.push(quote! { #name: #resource::__alias(#name, #stream, #token) });
            leaves.push(quote! { #resource::__leaves(#name, #visit); });
            drain.push(quote! { #resource::__drain(#name, #sink, #token); });
            producers.push(quote! { #resource::__producers(#name, #visit); });
        }
    }

    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    let mut with_tag = input.generics.clone();
    with_tag.params.insert(0, syn::parse_quote!(__S: ::thalweg::Brand));
    let (tag_impl_generics, tag_ty_generics, _) = with_tag.split_for_impl();
    let arguments = {
        let params = input.generics.params.iter().map(|p| match p {
            syn::GenericParam::Type(t) => &t.ident,
            syn::GenericParam::Const(c) => &c.ident,
            syn::GenericParam::Lifetime(_) => unreachable!("refused above"),
        });
        quote! { #(, #params)* }
    };

    let unzip = unzips.then(|| {
        let in_events = format_ident!("{ident}Events");
        let doc = format!("The parts of a [`{ident}`] in transit, each behind an event of its own.");
        quote! {
            #[doc = #doc]
            #[must_use = "dropping it gives the memory back"]
            #[allow(dead_code)]
            #vis struct #in_events #impl_generics #where_clause { #(#event_fields),* }

            // SAFETY: `__unzip` moves each resource of the struct into an event, once, and moves
            // the metadata.
            unsafe impl #impl_generics ::thalweg::Unzip for #ident #ty_generics #where_clause {
                type Events = #in_events #ty_generics;
                fn __unzip(self, #splitter: &::thalweg::Splitter) -> Self::Events {
                    let Self { #(#names),* } = self;
                    #in_events { #(#events),* }
                }
            }
        }
    });

    Ok(quote! {
        #unzip

        #[doc = #doc]
        #[must_use = "dropping it gives the memory back"]
        #vis struct #on #tag_impl_generics #where_clause { #(#declarations),* }

        // SAFETY: Each function takes the struct apart by a pattern that names every field, and
        // passes each resource once to the same function of the field's own implementation. It
        // moves metadata, and clones it for an alias. The struct has no `Drop`, because
        // taking it apart by value would not compile then.
        unsafe impl #impl_generics ::thalweg::Resource for #ident #ty_generics #where_clause {
            type On<__S: ::thalweg::Brand> = #on<__S #arguments>;

            fn __leaves<__F: ::core::ops::FnMut(::thalweg::LeafInfo)>(&self, #visit: &mut __F) {
                let Self { #(#names),* } = self;
                #(#leaves)*
            }
            fn __drain<__F: ::core::ops::FnMut(::thalweg::Leaf)>(&mut self, #sink: &mut __F, #token: ::thalweg::Token) {
                let Self { #(#names),* } = self;
                #(#drain)*
            }
            fn __bind<__S: ::thalweg::Brand>(
                self,
                #stream: ::thalweg::Stream<__S>,
                #token: ::thalweg::Token,
            ) -> Self::On<__S> {
                let Self { #(#names),* } = self;
                #on { #(#bind),* }
            }
            fn __alias<__S: ::thalweg::Brand>(
                &self,
                #stream: ::thalweg::Stream<__S>,
                #token: ::thalweg::Token,
            ) -> Self::On<__S> {
                let Self { #(#names),* } = self;
                #on { #(#alias),* }
            }
            fn __producers<__F: ::core::ops::FnMut(::thalweg::Producer<'_>)>(&self, #visit: &mut __F) {
                let Self { #(#names),* } = self;
                #(#producers)*
            }
        }

        // SAFETY: `__unbind` takes the struct apart by a pattern that names every field, and passes
        // each resource once to `__unbind` of the field's own implementation. It moves metadata.
        unsafe impl #tag_impl_generics ::thalweg::Bundle<__S> for #on #tag_ty_generics #where_clause {
            type Idle = #ident #ty_generics;
            fn __unbind(self, #token: ::thalweg::Token) -> Self::Idle {
                let Self { #(#names),* } = self;
                #ident { #(#unbind),* }
            }
        }
    })
}

/// Returns whether the attributes have `#[resource(OPTION)]`. Any other option in `resource` is an
/// error.
fn has_option(attributes: &[syn::Attribute], option: &str) -> Result<bool> {
    let mut found = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("resource")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident(option) {
                found = true;
                Ok(())
            } else {
                Err(meta.error(format!("expected `{option}`")))
            }
        })?;
    }
    Ok(found)
}
