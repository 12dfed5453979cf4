-- Counts requests of other services.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- Returns  {those in the stream, those that were set aside}
--! include keys
return { redis.call('XLEN', REQUESTS), redis.call('XLEN', POISON) }
