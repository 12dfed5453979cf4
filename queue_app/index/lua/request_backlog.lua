-- Counts the requests of other services.
--
-- Returns  {requests in the stream, quarantined requests}
--! include keys
return { redis.call('XLEN', REQUESTS), redis.call('XLEN', POISON) }
