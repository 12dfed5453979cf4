-- Counts the requests of other services.
--
-- KEYS[1]  prefix of all keys (their hash tag)
-- Returns  {requests in the stream, quarantined requests}
--! include keys
return { redis.call('XLEN', REQUESTS), redis.call('XLEN', POISON) }
