import java.net.InetSocketAddress;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.SparkConnectService;
import org.apache.spark.sql.hive.thriftserver.HiveThriftServer2;
import org.sparkproject.connect.grpc.netty.NettyServerBuilder;

/**
 * Spark Connect 3.5 on the loopback only: its main class listens on every interface. Spark is configured by -Dspark.*. With a
 * second port, the same Spark also answers there as a Spark Thrift Server.
 */
public class LoopbackSparkConnect {
  public static void main(String[] arguments) throws Exception {
    var session = SparkSession.builder().getOrCreate();
    var listener = SparkConnectService.class.getClassLoader()
        .loadClass("org.apache.spark.sql.connect.service.SparkConnectService$").getDeclaredMethod(
            "createListenerAndUI", org.apache.spark.SparkContext.class);
    listener.setAccessible(true);
    listener.invoke(org.apache.spark.sql.connect.service.SparkConnectService$.MODULE$, session.sparkContext());
    if (arguments.length > 1) {
      System.setProperty("hive.server2.thrift.bind.host", "127.0.0.1");
      System.setProperty("hive.server2.thrift.port", arguments[1]);
      HiveThriftServer2.startWithContext(session.sqlContext());
    }
    NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])))
        .maxInboundMessageSize(128 << 20)
        .addService(new SparkConnectService(false))
        .build().start().awaitTermination();
  }
}
