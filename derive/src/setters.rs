//! The setters of options.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Visibility};

/// Returns an `impl` with `with_FIELD` for each public field.
pub(crate) fn expand(input: &DeriveInput) -> TokenStream {
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
    let ident = &input.ident;
    quote! { impl #ident { #(#setters)* } }
}
