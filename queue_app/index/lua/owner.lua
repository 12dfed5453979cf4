-- Returns the identity of the database to which the index belongs; '' while it belongs to none.
--! include keys
local owner = redis.pcall('HGET', GENERATION, 'database')
return type(owner) == 'string' and is_identity(owner) and owner or ''
