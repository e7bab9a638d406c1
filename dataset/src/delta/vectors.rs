//! Deletion vectors: which rows of an object are deleted, though it has them still.

use delta_kernel::actions::deletion_vector::DeletionVectorDescriptor;
use delta_kernel::expressions::ColumnName;
use delta_kernel::schema::DataType;
use delta_kernel::{
    FilteredEngineData, FilteredRowVisitor, GetData, KernelError, KernelResult, RowIndexIterator,
};
use std::sync::LazyLock;

/// What a scan's rows say of an object and its vector, as the kernel names it.
static COLUMNS: LazyLock<(Vec<ColumnName>, Vec<DataType>)> = LazyLock::new(|| {
    let columns = [
        ("path", DataType::STRING),
        ("deletionVector.storageType", DataType::STRING),
        ("deletionVector.pathOrInlineDv", DataType::STRING),
        ("deletionVector.offset", DataType::INTEGER),
        ("deletionVector.sizeInBytes", DataType::INTEGER),
        ("deletionVector.cardinality", DataType::LONG),
    ];
    columns.into_iter().map(|(name, kind)| (ColumnName::from_naive_str_split(name), kind)).unzip()
});

/// The vectors of a batch's objects, in their order.
pub(super) fn of(batch: &FilteredEngineData) -> KernelResult<Vec<Option<DeletionVectorDescriptor>>> {
    let mut found = VectorVisitor(Vec::new());
    found.visit_rows_of(batch)?;
    Ok(found.0)
}

/// Takes the vectors out of a batch.
struct VectorVisitor(Vec<Option<DeletionVectorDescriptor>>);

impl FilteredRowVisitor for VectorVisitor {
    fn selected_column_names_and_types(&self) -> (&'static [ColumnName], &'static [DataType]) {
        (COLUMNS.0.as_slice(), COLUMNS.1.as_slice())
    }

    fn visit_filtered<'a>(
        &mut self,
        getters: &[&'a dyn GetData<'a>],
        rows: RowIndexIterator<'_>,
    ) -> KernelResult<()> {
        let [path, storage, place, offset, size, count] = getters else {
            return Err(KernelError::generic("a scan's rows have other columns than were asked for"));
        };
        let lacks = || KernelError::generic("a deletion vector lacks a field");
        for row in rows {
            // Other rows are no objects.
            if path.get_str(row, "path")?.is_none() {
                continue;
            }
            let Some(storage) = storage.get_str(row, "storageType")? else {
                self.0.push(None);
                continue;
            };
            let place = place.get_str(row, "pathOrInlineDv")?.ok_or_else(lacks)?;
            let offset = offset.get_int(row, "offset")?;
            let size = size.get_int(row, "sizeInBytes")?.ok_or_else(lacks)?;
            let count = count.get_long(row, "cardinality")?.ok_or_else(lacks)?;
            let vector = DeletionVectorDescriptor::try_new(storage.parse()?, place, offset, size, count)?;
            self.0.push(Some(vector));
        }
        Ok(())
    }
}
