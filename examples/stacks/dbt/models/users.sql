-- A state table may hold deleted keys for a while: `_operation` tells them apart.
select _stream as stream, _key as key, name, age
from {{ source('warehouse', 'state_user') }}
where _operation <> 'delete'
