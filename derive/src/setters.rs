//! The setters of options.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Result, Visibility};

/// Returns an `impl` with `with_FIELD` for each public field.
///
/// # Errors
/// The struct is not `#[non_exhaustive]`. Without a default the result does not compile.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let ident = &input.ident;
    if !input.attrs.iter().any(|attribute| attribute.path().is_ident("non_exhaustive")) {
        return Err(Error::new_spanned(ident, "a struct of options is `#[non_exhaustive]`, so that it can get more"));
    }
    let fields = if let Data::Struct(data) = &input.data { Some(&data.fields) } else { None };
    let setters =
        fields.into_iter().flatten().filter(|field| matches!(field.vis, Visibility::Public(_))).map(|field| {
            let (name, ty) = (&field.ident, &field.ty);
            let setter = format_ident!("with_{}", name.as_ref().expect("options have names"));
            let doc = format!("Sets [`{0}`](Self::{0}).", quote!(#name));
            quote! {
                #[doc = #doc]
                #[must_use]
                pub fn #setter(mut self, #name: #ty) -> Self {
                    self.#name = #name;
                    self
                }
            }
        });
    Ok(quote! {
        impl #ident { #(#setters)* }
        const _: fn() -> #ident = ::core::default::Default::default; // programs begin with it
    })
}
