//! `#[derive(Key)]` and `#[derive(Value)]` for tables of the crate `braiddb`, which re-exports and
//! documents them with its feature `derive`.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Member, Result, Type};

/// Derives `braid::Key` and `braid::AsKey` for a struct: its encoding and order are those of a
/// tuple of its fields.
#[proc_macro_derive(Key, attributes(braid))]
pub fn key(input: TokenStream) -> TokenStream {
    expand(input, key_of)
}

/// Derives `braid::Value` and `braid::AsValue` for a type that serde serializes.
#[proc_macro_derive(Value, attributes(braid))]
pub fn value(input: TokenStream) -> TokenStream {
    expand(input, value_of)
}

fn expand(input: TokenStream, derive: fn(&DeriveInput) -> Result<Tokens>) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    derive(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// Returns the name in `#[braid(name = "...")]`.
fn name_of(input: &DeriveInput) -> Result<Option<String>> {
    let mut name = None;
    for attribute in &input.attrs {
        if attribute.path().is_ident("braid") {
            attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("name") {
                    return Err(meta.error("unknown option; write #[braid(name = \"...\")]"));
                }
                name = Some(meta.value()?.parse::<LitStr>()?.value());
                Ok(())
            })?;
        }
    }
    Ok(name)
}

fn check_not_generic(input: &DeriveInput) -> Result<()> {
    match input.generics.params.first() {
        None => Ok(()),
        Some(parameter) => Err(Error::new_spanned(
            parameter,
            "cannot derive for a generic type: its name is stored with tables, so it must be one type",
        )),
    }
}

/// Returns the fields of a struct.
fn fields_of(input: &DeriveInput) -> Result<Vec<(Member, &Type)>> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "cannot derive Key for an enum or a union: only the fields of a struct have an order; implement Key and AsKey",
        ));
    };
    let fields: Vec<_> = match &data.fields {
        Fields::Unit => Vec::new(),
        fields => {
            let types = fields.iter().map(|field| &field.ty);
            fields.members().zip(types).collect()
        }
    };
    if fields.is_empty() {
        return Err(Error::new_spanned(
            &input.ident,
            "cannot derive Key for a struct without fields",
        ));
    }
    Ok(fields)
}

fn key_of(input: &DeriveInput) -> Result<Tokens> {
    check_not_generic(input)?;
    let fields = fields_of(input)?;
    let name = &input.ident;
    let types: Vec<&Type> = fields.iter().map(|(_, ty)| *ty).collect();
    let Some(((last, last_type), parts)) = fields.split_last() else {
        return Err(Error::new_spanned(name, "cannot derive Key without fields"));
    };
    let (members, part_types): (Vec<_>, Vec<_>) =
        parts.iter().map(|(member, ty)| (member, *ty)).unzip();
    let short_name = if parts.is_empty() {
        quote!(<#last_type as ::braid::Key>::TYPE_NAME)
    } else {
        quote!("tuple")
    };
    let full_name = match name_of(input)? {
        Some(name) => quote!(::std::string::String::from(#name)),
        None => quote!(::braid::derive::tuple_name(&[#(<#types as ::braid::Key>::type_name()),*])),
    };
    Ok(quote! {
        #[automatically_derived]
        impl ::braid::Key for #name {
            const TYPE_NAME: &'static str = #short_name;
            const FIXED_LEN: ::std::option::Option<usize> =
                ::braid::derive::sum(&[#(<#types as ::braid::Key>::FIXED_LEN),*]);

            fn type_name() -> ::std::string::String {
                #full_name
            }

            #[allow(unused_mut)]
            fn from_key_bytes(mut bytes: ::braid::Bytes) -> ::braid::Result<Self> {
                ::std::result::Result::Ok(Self {
                    #(#members: ::braid::derive::take_part::<#part_types>(&mut bytes)?,)*
                    #last: <#last_type as ::braid::Key>::from_key_bytes(bytes)?,
                })
            }
        }

        #[automatically_derived]
        impl ::braid::AsKey<#name> for #name {
            fn with_key_bytes<R>(&self, f: impl ::std::ops::FnOnce(&[u8]) -> R) -> R {
                let mut bytes = ::std::vec::Vec::new();
                #(::braid::derive::put_part::<#part_types>(&self.#members, &mut bytes);)*
                ::braid::derive::put_last::<#last_type>(&self.#last, &mut bytes);
                f(&bytes)
            }
        }
    })
}

fn value_of(input: &DeriveInput) -> Result<Tokens> {
    check_not_generic(input)?;
    let name: &Ident = &input.ident;
    let type_name = name_of(input)?.unwrap_or_else(|| name.to_string());
    Ok(quote! {
        #[automatically_derived]
        impl ::braid::Value for #name {
            const TYPE_NAME: &'static str = #type_name;

            fn from_value_bytes(bytes: ::braid::Bytes) -> ::braid::Result<Self> {
                ::braid::derive::decode(<Self as ::braid::Value>::TYPE_NAME, &bytes)
            }
        }

        #[automatically_derived]
        impl ::braid::AsValue<#name> for #name {
            fn with_value_bytes<R>(&self, f: impl ::std::ops::FnOnce(&[u8]) -> R) -> R {
                ::braid::derive::encode(self, f)
            }
        }
    })
}
