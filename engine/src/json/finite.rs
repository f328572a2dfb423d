//! A serialiser that writes nothing and finds numbers that are not finite.

use super::JsonError;
use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finite;

type Found = Result<(), JsonError>;
type Nested = Result<Finite, JsonError>;

macro_rules! harmless {
    ($($name:ident($type:ty)),* $(,)?) => {
        $(fn $name(self, _: $type) -> Found {
            Ok(())
        })*
    };
}

fn finite(finite: bool) -> Found {
    if finite {
        Ok(())
    } else {
        Err(JsonError::NotFinite)
    }
}

impl Serializer for Finite {
    type Ok = ();
    type Error = JsonError;
    type SerializeSeq = Finite;
    type SerializeTuple = Finite;
    type SerializeTupleStruct = Finite;
    type SerializeTupleVariant = Finite;
    type SerializeMap = Finite;
    type SerializeStruct = Finite;
    type SerializeStructVariant = Finite;

    harmless!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128),
        serialize_char(char),
        serialize_str(&str),
        serialize_bytes(&[u8]),
        serialize_unit_struct(&'static str),
    );

    fn serialize_f32(self, value: f32) -> Found {
        finite(value.is_finite())
    }

    fn serialize_f64(self, value: f64) -> Found {
        finite(value.is_finite())
    }

    fn serialize_none(self) -> Found {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Found {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Found {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Found {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Found {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Found {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Nested {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Nested {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Nested {
        Ok(self)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Nested {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Nested {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Nested {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Nested {
        Ok(self)
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, _: &T) -> Found {
        Ok(())
    }
}

macro_rules! lists {
    ($($trait:ident::$name:ident),* $(,)?) => {
        $(impl $trait for Finite {
            type Ok = ();
            type Error = JsonError;

            fn $name<T: Serialize + ?Sized>(&mut self, value: &T) -> Found {
                value.serialize(*self)
            }

            fn end(self) -> Found {
                Ok(())
            }
        })*
    };
}

lists!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
);

macro_rules! structs {
    ($($trait:ident),* $(,)?) => {
        $(impl $trait for Finite {
            type Ok = ();
            type Error = JsonError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Found {
                value.serialize(*self)
            }

            fn end(self) -> Found {
                Ok(())
            }
        })*
    };
}

structs!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Finite {
    type Ok = ();
    type Error = JsonError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Found {
        key.serialize(*self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Found {
        value.serialize(*self)
    }

    fn end(self) -> Found {
        Ok(())
    }
}
